// SPDX-License-Identifier: Apache-2.0
// The register tile of every matrix product: some rows times one or two panels. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_TILE_INL_H
#undef MILLRACE_KERNELS_CPU_TILE_INL_H
#else
#define MILLRACE_KERNELS_CPU_TILE_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include <hwy/highway.h>
#include <millrace/kernels/cpu/gemm_kernels.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of a tile: with four vectors of columns, the accumulators, one row of b and the broadcast elements of a fit the
// registers.
#if HWY_TARGET == HWY_AVX3
inline constexpr int tile_rows = 6;
#else
inline constexpr int tile_rows = 3;
#endif
/// Up to so many rows take two panels at a time: fewer would leave the multipliers waiting for their own results.
inline constexpr int pair_rows = tile_rows / 2;

/// Whether `rows` rows take two panels at a time, of weights of `bytes` bytes in all. With 512 bits one panel keeps up with the second cache by
/// itself, where it is fetched ahead: two at a time win where all lie in the first cache, or far away.
inline bool TakesPairs(std::int64_t rows, [[maybe_unused]] std::int64_t bytes) {
  if (rows > pair_rows) return false;
#if HWY_TARGET == HWY_AVX3
  constexpr std::int64_t first_cache = 32 << 10, near = 384 << 10;  // of the second cache, which rows and slots share
  return rows == pair_rows || bytes <= first_cache || bytes > near;
#else
  return true;
#endif
}

template <class T>
HWY_INLINE constexpr std::size_t MaxLanesOf() {
  return hn::MaxLanes(hn::ScalableTag<T>());
}

/// A tile of Rows rows times Vectors vectors of columns: adds up a[row]·b over k, b `b_stride` from k to k, into to[row][column …]; vectors 4… belong to a
/// second panel, `panel_stride` further on. One chain per output; blocks of k_block are summed apart and added in order. W: T, or bf16 (as uint16_t) in
/// pairs of k, `b_stride` from pair to pair.
template <class T, class W>
using TileFunction = void (*)(const T* const*, std::int64_t, const W*, std::int64_t, std::int64_t, T* const*, std::int64_t);

/// The tile of `rows` 1…tile_rows and `vectors` 1…4, or 8 for up to pair_rows rows. tile_kernels.cpp has them, compiled once for all users.
template <class T, class W = T>
TileFunction<T, W> TileFor(int rows, int vectors);

/// Totals of the largest tile, for what comes behind them.
template <class T>
struct TileRoom {
  explicit TileRoom(int vectors) {
    for (int row = 0; row < tile_rows; ++row) rows[row] = total + static_cast<std::size_t>(row % most(vectors) * vectors) * MaxLanesOf<T>();
  }
  HWY_ALIGN T total[static_cast<std::size_t>(tile_rows) * panel_vectors * MaxLanesOf<T>()];
  T* rows[tile_rows];

 private:
  static constexpr int most(int vectors) { return vectors > panel_vectors ? pair_rows : tile_rows; }
};

/// Splits `rows` into tiles of nearly equal height and calls f(first, height).
template <class F>
HWY_INLINE void EachTile(std::int64_t rows, F f) {
  if (rows > 0 && rows <= tile_rows) return f(0, static_cast<int>(rows));
  const std::int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t first = (rows * tile + tiles - 1) / tiles;  // the first ones are the highest
    f(first, static_cast<int>((rows * (tile + 1) + tiles - 1) / tiles - first));
  }
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
