// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/conv_kernels.h>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/conv_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>
#include <millrace/kernels/cpu/tile-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// How a tile reads the panel of places: from where it lies, from there to a packed copy, or from that copy, where no vector crosses a cache line.
enum class Reads { plane, plane_to_copy, copy };

/// `Rows` units from `unit` on, over the k of one block. As Tile (tile-inl.h), with the places in the lanes and each k where `offsets` says: nothing is
/// unfolded.
template <class T, int Rows, Reads How, int Vectors>
HWY_NOINLINE void ConvTile(const ConvCall<T>& call, std::int64_t begin, std::int64_t end, std::int64_t unit) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  const std::int64_t stride = call.k;
  const T* weights = call.weights + unit * call.k;
  const T* x = call.x;
  const std::int64_t* offsets = call.offsets;
  [[maybe_unused]] T* copy = call.copy;
  [[maybe_unused]] constexpr std::uintptr_t next_panel = static_cast<std::uintptr_t>(Vectors * lanes) * sizeof(T);
  // Units lie far apart: their lines come while the sums are made.
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Vectors; ++v) hwy::Prefetch(call.out + (unit + row) * call.out_stride + v * lanes);
  V sum[Rows][Vectors];
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Vectors; ++v) sum[row][v] = hn::Zero(d);
  for (std::int64_t at = begin; at < end; ++at) {
    const T* from = How == Reads::copy ? copy : x + offsets[at];
    V weight[Rows];
    for (int row = 0; row < Rows; ++row) weight[row] = hn::Set(d, weights[row * stride + at]);
    for (int v = 0; v < Vectors; ++v) {
      const V seen = How == Reads::copy ? hn::Load(d, from + v * lanes) : hn::LoadU(d, from + v * lanes);
      if constexpr (How == Reads::plane_to_copy) {
        hn::Store(seen, d, copy + v * lanes);
        // Each k lies elsewhere: its places of the next panel come while the other units of this one are computed. An address, not a pointer: it may lie
        // behind the end.
        hwy::Prefetch(reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(from + v * lanes) + next_panel));
      }
      for (int row = 0; row < Rows; ++row) sum[row][v] = hn::MulAdd(weight[row], seen, sum[row][v]);
    }
    if constexpr (How != Reads::plane) copy += Vectors * lanes;
  }
  const bool last = end == call.k;
  for (int row = 0; row < Rows; ++row) {
    T* to = call.out + (unit + row) * call.out_stride;
    for (int v = 0; v < Vectors; ++v) {
      V total = begin == 0 ? sum[row][v] : hn::Add(hn::LoadU(d, to + v * lanes), sum[row][v]);
      if (last && call.bias != nullptr) total = hn::Add(total, hn::Set(d, call.bias[unit + row]));
      if (last && call.relu) total = KeepNaN(d, total, hn::Max(total, hn::Zero(d)));
      hn::StoreU(total, d, to + v * lanes);
    }
  }
}

template <class T, Reads How, int Vectors = panel_vectors>
HWY_INLINE void RunTile(const ConvCall<T>& call, std::int64_t begin, std::int64_t end, std::int64_t unit, int height) {
  switch (height) {
    case 1: return ConvTile<T, 1, How, Vectors>(call, begin, end, unit);
    case 2: return ConvTile<T, 2, How, Vectors>(call, begin, end, unit);
    case 3: return ConvTile<T, 3, How, Vectors>(call, begin, end, unit);
#if HWY_TARGET == HWY_AVX3
    case 4: return ConvTile<T, 4, How, Vectors>(call, begin, end, unit);
    case 5: return ConvTile<T, 5, How, Vectors>(call, begin, end, unit);
    default: return ConvTile<T, 6, How, Vectors>(call, begin, end, unit);
#else
    default: return;
#endif
  }
}

/// Blocks of k outside: all units read the same elements of a plane. The first tile of many copies them. Panels inside: a tile writes long rows of out.
template <class T>
void RunConv(const ConvCall<T>& call) {
  constexpr auto width = static_cast<std::int64_t>(panel_vectors * MaxLanesOf<T>());
  ConvCall<T> one = call;
  std::int64_t begin = 0, block = 0;
  do {  // once where there is no k: sums of nothing
    const std::int64_t end = std::min(call.k, begin + (call.block_k == nullptr ? k_block : call.block_k[block]));
    EachTile(call.units, wide_rows, [&](std::int64_t unit, int height) HWY_ATTR {
      for (std::int64_t panel = 0; panel < call.panels; ++panel) {
        one.x = call.x + panel * width;
        one.out = call.out + panel * width;
        if (call.copy == nullptr) {
          if (call.vectors == 1)
            RunTile<T, Reads::plane, 1>(one, begin, end, unit, height);
          else if (call.vectors == 2)
            RunTile<T, Reads::plane, 2>(one, begin, end, unit, height);
          else if (call.vectors == 3)
            RunTile<T, Reads::plane, 3>(one, begin, end, unit, height);
          else
            RunTile<T, Reads::plane>(one, begin, end, unit, height);
          continue;
        }
        one.copy = call.copy + panel * call.k * width;
        if (unit == 0)
          RunTile<T, Reads::plane_to_copy>(one, begin, end, unit, height);
        else
          RunTile<T, Reads::copy>(one, begin, end, unit, height);
      }
    });
    begin = end;
    ++block;
  } while (begin < call.k);
}

void RunConvF32(const ConvCall<float>& call) { RunConv(call); }
void RunConvF64(const ConvCall<double>& call) { RunConv(call); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunConvF32);
HWY_EXPORT(RunConvF64);

void conv_panel(const ConvCall<float>& call) { HWY_DYNAMIC_DISPATCH(RunConvF32)(call); }
void conv_panel(const ConvCall<double>& call) { HWY_DYNAMIC_DISPATCH(RunConvF64)(call); }

}  // namespace millrace::cpu
#endif
