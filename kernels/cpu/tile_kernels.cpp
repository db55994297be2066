// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <type_traits>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/tile_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/tile-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// Rows of a panel of b that are fetched ahead for few rows of a: the prefetcher of a processor is late.
inline constexpr std::int64_t fetched_rows = 16;

/// Two k of a vector of columns in bf16, side by side in each lane, as f32: exact.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void LoadPair(D d, const std::uint16_t* from, V& even, V& odd) {
  const hn::RebindToUnsigned<D> bits;
#if HWY_TARGET == HWY_SCALAR  // has no halves of a lane
  std::uint32_t both = 0;
  std::memcpy(&both, from, sizeof both);
  const auto pair = hn::Set(bits, both);
#else
  const hn::Repartition<std::uint16_t, D> halves;
  const auto pair = hn::BitCast(bits, hn::LoadU(halves, from));
#endif
  even = hn::BitCast(d, hn::ShiftLeft<16>(pair));
  odd = hn::BitCast(d, hn::And(pair, hn::Set(bits, 0xFFFF0000u)));
}

template <class T, class W, int Rows, int Vectors>
HWY_NOINLINE void Tile(const T* const* a, std::int64_t k, const W* b, std::int64_t b_stride, std::int64_t panel_stride, T* const* to,
                       std::int64_t column, [[maybe_unused]] std::uintptr_t fetched, [[maybe_unused]] std::int64_t fetched_step) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  constexpr bool pairs = !std::is_same_v<T, W>;
  constexpr std::int64_t wide = pairs ? 2 * lanes : lanes;  // elements of W in a vector of columns
  // The first element of vector `v` of the columns.
  const auto of = [&](int v) HWY_ATTR { return b + v / panel_of * panel_stride + v % panel_of * wide; };
  [[maybe_unused]] const std::uintptr_t ahead =
      reinterpret_cast<std::uintptr_t>(b) + static_cast<std::uintptr_t>(fetched_rows * b_stride) * sizeof(W);
  for (std::int64_t begin = 0; begin == 0 || begin < k; begin += k_block) {
    const std::int64_t end = std::min(k, begin + k_block);
    V sum[Rows][Vectors];
    for (int row = 0; row < Rows; ++row)
      for (int v = 0; v < Vectors; ++v) sum[row][v] = hn::Zero(d);
    if constexpr (pairs) {
      static_assert(k_block % 2 == 0);
      const auto pair_of = [&](std::int64_t at, int v) HWY_ATTR { return of(v) + at / 2 * b_stride; };
      std::int64_t at = begin;
      for (; at + 1 < end; at += 2) {
        for (int v = 0; v < Vectors; ++v) {
          V even, odd;
          LoadPair(d, pair_of(at, v), even, odd);
          for (int row = 0; row < Rows; ++row) sum[row][v] = hn::MulAdd(hn::Set(d, a[row][at]), even, sum[row][v]);
          for (int row = 0; row < Rows; ++row) sum[row][v] = hn::MulAdd(hn::Set(d, a[row][at + 1]), odd, sum[row][v]);
        }
      }
      for (int v = 0; v < Vectors && at < end; ++v) {
        V even, odd;
        LoadPair(d, pair_of(at, v), even, odd);
        for (int row = 0; row < Rows; ++row) sum[row][v] = hn::MulAdd(hn::Set(d, a[row][at]), even, sum[row][v]);
      }
    } else {
      const auto add_products = [&](std::int64_t at) HWY_ATTR {
        if constexpr (Rows > wide_rows) {  // the vectors of a panel are fewer than the rows
          V right[Vectors];
          for (int v = 0; v < Vectors; ++v) right[v] = hn::LoadU(d, of(v) + at * b_stride);
          for (int row = 0; row < Rows; ++row) {
            const V left = hn::Set(d, a[row][at]);
            for (int v = 0; v < Vectors; ++v) sum[row][v] = hn::MulAdd(left, right[v], sum[row][v]);
          }
          return;
        }
        V left[Rows];
        for (int row = 0; row < Rows; ++row) left[row] = hn::Set(d, a[row][at]);
#if HWY_TARGET == HWY_AVX3
        // An address, not a pointer: it may lie behind the end.
        if constexpr (Rows < widest_rows && Vectors == panel_of) {
          const std::uintptr_t next = ahead + static_cast<std::uintptr_t>(at * b_stride) * sizeof(T);
          for (int v = 0; v < Vectors; ++v)
            hwy::Prefetch(reinterpret_cast<const T*>(next + static_cast<std::uintptr_t>(v * lanes) * sizeof(T)));
        }
        if constexpr (Rows >= widest_rows)
          __builtin_prefetch(reinterpret_cast<const void*>(fetched + static_cast<std::uintptr_t>(at * fetched_step)), 0, 2);
#endif
        for (int v = 0; v < Vectors; ++v) {
          const V right = hn::LoadU(d, of(v) + at * b_stride);
          for (int row = 0; row < Rows; ++row) sum[row][v] = hn::MulAdd(left[row], right, sum[row][v]);
        }
      };
      std::int64_t at = begin;
      // Branches so few that a processor foresees the last. Tiles that wait for their weights, those of few rows and of eight vectors, lost 4 per cent.
      constexpr bool in_fours = HWY_TARGET == HWY_AVX3 && sizeof(T) == 4 && Rows >= widest_rows && Vectors <= panel_of;
      for (; in_fours && at + 3 < end; at += 4) {
        add_products(at);
        add_products(at + 1);
        add_products(at + 2);
        add_products(at + 3);
      }
      for (; at < end; ++at) add_products(at);
    }
    for (int row = 0; row < Rows; ++row) {
      for (int v = 0; v < Vectors; ++v) {
        T* there = to[row] + column + v * lanes;
        hn::StoreU(begin == 0 ? sum[row][v] : hn::Add(hn::LoadU(d, there), sum[row][v]), d, there);
      }
    }
  }
}

template <class T, class W, int Rows>
HWY_INLINE TileFunction<T, W> TileOfRows(int vectors) {
  if (vectors == 1) return Tile<T, W, Rows, 1>;
  if (vectors == 2) return Tile<T, W, Rows, 2>;
  if constexpr (Rows <= wide_rows) {
    if (vectors == 3) return Tile<T, W, Rows, 3>;
    if (vectors == 4) return Tile<T, W, Rows, 4>;
  }
  if constexpr (Rows <= widest_rows) return Tile<T, W, Rows, 8>;
  return nullptr;
}

template <class T, class W>
TileFunction<T, W> TileFor(int rows, int vectors) {
  switch (rows) {
    case 1: return TileOfRows<T, W, 1>(vectors);
    case 2: return TileOfRows<T, W, 2>(vectors);
    case 3: return TileOfRows<T, W, 3>(vectors);
    case 4: return TileOfRows<T, W, 4>(vectors);
    case 5: return TileOfRows<T, W, 5>(vectors);
    case 6: return TileOfRows<T, W, 6>(vectors);
    default: return nullptr;
  }
}

template TileFunction<float, float> TileFor(int, int);
template TileFunction<float, std::uint16_t> TileFor(int, int);
template TileFunction<double, double> TileFor(int, int);

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
