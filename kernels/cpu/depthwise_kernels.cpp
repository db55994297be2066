// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/depthwise_kernels.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#define MILLRACE_LARGE
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/depthwise_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/conv_ending-inl.h>
#include <millrace/kernels/cpu/elementary-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>
#include <millrace/kernels/cpu/tile-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Whether a sum from number `i` on is −0, as small products leave it: zeros of the padding behind it would make it +0. A loop that is unrolled, as the next
/// one: sums stay in registers.
template <int i, int Rows, int Vectors, class D, class V = hn::Vec<D>>
HWY_INLINE auto IsMinusZero(D d, const V (&sum)[Rows][Vectors]) {
  const hn::RebindToUnsigned<D> words;
  const auto here = hn::Eq(hn::BitCast(words, sum[i / Vectors][i % Vectors]), hn::BitCast(words, hn::Neg(hn::Zero(d))));
  if constexpr (i + 1 < Rows * Vectors)
    return hn::Or(here, IsMinusZero<i + 1>(d, sum));
  else
    return here;
}
template <int Rows, int Vectors, class D, class V = hn::Vec<D>>
HWY_INLINE bool HasMinusZero(D d, const V (&sum)[Rows][Vectors]) {
  return !hn::AllFalse(hn::RebindToUnsigned<D>(), IsMinusZero<0>(d, sum));
}

/// Sums from number `i` on, behind bias, relu and ending, whose first is that of the element at `to`, and of the next row `columns` elements behind it. `some`
/// lanes of a row are stored where it is one vector, else all.
template <int i, int Rows, int Vectors, class D, class T = hn::TFromD<D>, class V = hn::Vec<D>>
HWY_INLINE void FinishSums(D d, const DepthwiseCall<T>& call, const V (&sum)[Rows][Vectors], T* to, std::size_t some) {
  constexpr int row = i / Vectors, vector = i % Vectors;
  V total = sum[row][vector];
  if (call.bias != nullptr) total = hn::Add(total, hn::Set(d, *call.bias));
  total = TakeEnding(d, call.relu, call.ending, total);
  T* const place = to + row * call.columns + static_cast<std::int64_t>(vector * hn::Lanes(d));
  if constexpr (Vectors == 1)
    StoreSome(d, total, place, some);
  else
    hn::StoreU(total, d, place);
  if constexpr (i + 1 < Rows * Vectors) FinishSums<i + 1>(d, call, sum, to, some);
}

/// The call with all rows of the plane.
template <class Call>
Call OfAllRows(Call call) {
  call.first = 0;
  call.last = std::numeric_limits<std::int64_t>::max();
  return call;
}

/// A tile: `Rows` rows of the output, `Vectors` vectors of each. `Stride` is 0, or the stride of Taps × Taps taps, whose loops have no branches.
template <int Rows_, int Vectors_, int Taps_, int Stride_>
struct Tile {
  static constexpr int Rows = Rows_, Vectors = Vectors_, Taps = Taps_, Stride = Stride_;
};

/// Row `i` of the plane, for all rows of the tile that see it.
template <class Of, class D, class T = hn::TFromD<D>, class V = hn::Vec<D>>
HWY_INLINE void SeeRow(Of, D d, const DepthwiseCall<T>& call, const T* from, const std::int64_t* offsets, std::int64_t i,
                       V (&sum)[Of::Rows][Of::Vectors]) {
  const std::int64_t taps1 = Of::Stride > 0 ? Of::Taps : call.taps1, stride = Of::Stride > 0 ? Of::Stride : call.stride;
  V x[Of::Taps][Of::Vectors];
  for (int t = 0; t < Of::Taps; ++t)
    for (int v = 0; v < Of::Vectors; ++v)
      x[t][v] = hn::LoadU(d, from + i * call.row + offsets[t] + v * static_cast<std::int64_t>(hn::Lanes(d)));
  for (int r = 0; r < Of::Rows; ++r) {
    const std::int64_t tap = i - r * stride;
    if (tap < 0 || tap >= taps1) continue;
    const T* weights = call.weights + tap * Of::Taps;
    for (int t = 0; t < Of::Taps; ++t) {
      const V weight = hn::Set(d, weights[t]);
      for (int v = 0; v < Of::Vectors; ++v) sum[r][v] = hn::MulAdd(weight, x[t][v], sum[r][v]);
    }
  }
}
/// Rows [begin, end) of the plane.
template <int i, class Of, class D, class T = hn::TFromD<D>, class V = hn::Vec<D>>
HWY_INLINE void SeeRows(Of of, D d, const DepthwiseCall<T>& call, const T* from, const std::int64_t* offsets, std::int64_t begin,
                        std::int64_t end, V (&sum)[Of::Rows][Of::Vectors]) {
  if constexpr (i < (Of::Rows - 1) * Of::Stride + Of::Taps) {
    if (i >= begin && i < end) SeeRow(of, d, call, from, offsets, i, sum);
    SeeRows<i + 1>(of, d, call, from, offsets, begin, end, sum);
  }
}

/// The rows from `first` on, from column `column` on. Rows of the plane ascend, so each output meets its taps in order; the vectors of a row of the plane
/// serve all rows of the output that see it.
template <class Of, class T>
HWY_NOINLINE void RowTile(Of of, const DepthwiseCall<T>& call, std::int64_t first, std::int64_t column, std::size_t some) {
  const hn::ScalableTag<T> d;
  const std::int64_t top = first * (Of::Stride > 0 ? Of::Stride : call.stride), begin = call.first - top, end = call.last - top;
  const T* from = call.plane + top * call.row + column;
  hn::Vec<decltype(d)> sum[Of::Rows][Of::Vectors];
  for (int r = 0; r < Of::Rows; ++r)
    for (int v = 0; v < Of::Vectors; ++v) sum[r][v] = hn::Zero(d);
  std::int64_t offsets[Of::Taps];
  std::copy_n(call.offsets, Of::Taps, offsets);
  if constexpr (Of::Stride > 0) {
    SeeRows<0>(of, d, call, from, offsets, begin, end, sum);
  } else {
    const std::int64_t seen = std::min(end, (Of::Rows - 1) * call.stride + call.taps1);
    for (std::int64_t i = std::max<std::int64_t>(0, begin); i < seen; ++i) SeeRow(of, d, call, from, offsets, i, sum);
  }
  if ((Of::Rows - 1) * (Of::Stride > 0 ? Of::Stride : call.stride) + call.taps1 > end && HasMinusZero(d, sum))
    return RowTile(of, OfAllRows(call), first, column, some);
  FinishSums<0>(d, call, sum, call.out + first * call.columns + column, some);
}

/// `Vectors` vectors of one row, any taps.
template <int Vectors, class T>
HWY_NOINLINE void AnyTile(const DepthwiseCall<T>& call, std::int64_t row, std::int64_t column, std::size_t some) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* from = call.plane + row * call.stride * call.row + column;
  const T* weights = call.weights;
  hn::Vec<decltype(d)> sum[1][Vectors];
  for (int v = 0; v < Vectors; ++v) sum[0][v] = hn::Zero(d);
  for (std::int64_t tap1 = 0; tap1 < call.taps1; ++tap1, from += call.dilation * call.row) {
    if (const std::int64_t seen = row * call.stride + tap1 * call.dilation; seen < call.first || seen >= call.last) {
      weights += call.taps2;
      continue;
    }
    for (std::int64_t tap2 = 0; tap2 < call.taps2; ++tap2, ++weights) {
      const auto weight = hn::Set(d, *weights);
      const T* x = from + call.offsets[tap2];
      for (int v = 0; v < Vectors; ++v) sum[0][v] = hn::MulAdd(weight, hn::LoadU(d, x + v * lanes), sum[0][v]);
    }
  }
  if (row * call.stride + (call.taps1 - 1) * call.dilation >= call.last && HasMinusZero(d, sum))
    return AnyTile<Vectors>(OfAllRows(call), row, column, some);
  FinishSums<0>(d, call, sum, call.out + row * call.columns + column, some);
}

/// Calls f(vectors, column, some) for vectors that cover a row; the last one overlaps the one before, or has `some` lanes where a row is shorter than one.
template <int Most, class F>
HWY_INLINE void EachColumns(std::int64_t columns, std::int64_t lanes, F f) {
  if (columns < lanes) return f(std::integral_constant<int, 1>(), 0, static_cast<std::size_t>(columns));
  const auto all = static_cast<std::size_t>(lanes);
  std::int64_t at = 0;
  for (; at + Most * lanes <= columns; at += Most * lanes) f(std::integral_constant<int, Most>(), at, all);
  for (; at < columns; at += lanes) f(std::integral_constant<int, 1>(), std::min(at, columns - lanes), all);
}

template <int Taps, int Stride, class T>
HWY_INLINE void RunRows(const DepthwiseCall<T>& call) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  std::int64_t row = 0;
  const auto run = [&](auto rows) HWY_ATTR {
    constexpr int many = decltype(rows)::value;
    EachColumns<2>(call.columns, lanes, [&](auto vectors, std::int64_t column, std::size_t some) HWY_ATTR {
      RowTile(Tile<many, decltype(vectors)::value, Taps, Stride>(), call, row, column, some);
    });
    row += many;
  };
  while (row + 4 <= call.rows) run(std::integral_constant<int, 4>());
  while (row + 2 <= call.rows) run(std::integral_constant<int, 2>());
  while (row < call.rows) run(std::integral_constant<int, 1>());
}

template <int Taps, class T>
HWY_INLINE void RunTaps(const DepthwiseCall<T>& call) {
  if (call.taps1 == Taps && call.stride == 1) return RunRows<Taps, 1>(call);
  if (call.taps1 == Taps && call.stride == 2) return RunRows<Taps, 2>(call);
  RunRows<Taps, 0>(call);
}

template <class T>
HWY_INLINE void RunPlane(const DepthwiseCall<T>& call) {
  if constexpr (sizeof(T) == 4) {  // f64 is rare, and these tiles are most of this source's machine code
    if (call.dilation == 1 && call.rows > 1) {
      if (call.taps2 == 3) return RunTaps<3>(call);
      if (call.taps2 == 5) return RunTaps<5>(call);
    }
  }
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  for (std::int64_t row = 0; row < call.rows; ++row)
    EachColumns<6>(call.columns, lanes, [&](auto vectors, std::int64_t column, std::size_t some) HWY_ATTR {
      AnyTile<decltype(vectors)::value>(call, row, column, some);
    });
}

/// The first `count` lanes. A store through a mask is read late: other rows and planes come between.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void StoreFirst(D d, hn::Vec<D> value, T* to, std::size_t count) {
#if HWY_TARGET == HWY_AVX3
  hn::BlendedStore(value, hn::FirstN(d, count), d, to);
#else
  StoreSome(d, value, to, count);
#endif
}

/// `Count` places of a row, from column `column` on.
template <int Count, class T>
HWY_NOINLINE void LanesTile(const DepthwiseLanes<T>& call, std::int64_t row, std::int64_t column) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d)), step = call.along.stride * lanes;
  hn::Vec<decltype(d)> sum[1][Count];
  for (int i = 0; i < Count; ++i) sum[0][i] = hn::Zero(d);
  for (std::int64_t tap1 = 0; tap1 < call.down.taps; ++tap1) {
    const std::int64_t seen = row * call.down.stride + tap1 * call.down.dilation;
    if (seen < call.first || seen >= call.last) continue;
    const T* weights = call.weights + tap1 * call.along.taps * lanes;
    const T* x = call.plane + (seen * call.width + column * call.along.stride) * lanes;
    for (std::int64_t tap2 = 0; tap2 < call.along.taps; ++tap2, weights += lanes, x += call.along.dilation * lanes) {
      const auto weight = hn::LoadU(d, weights);
      for (int i = 0; i < Count; ++i) sum[0][i] = hn::MulAdd(weight, hn::LoadU(d, x + i * step), sum[0][i]);
    }
  }
  if (row * call.down.stride + (call.down.taps - 1) * call.down.dilation >= call.last && HasMinusZero(d, sum))
    return LanesTile<Count>(OfAllRows(call), row, column);
  T* const out = call.out + (row * call.columns + column) * lanes;
  if (call.bias != nullptr)
    for (int i = 0; i < Count; ++i) sum[0][i] = hn::Add(sum[0][i], hn::LoadU(d, call.bias));
  if (call.relu || call.ending.kind != ConvEnding<T>::Kind::none)
    for (int i = 0; i < Count; ++i) sum[0][i] = TakeEnding(d, call.relu, call.ending, sum[0][i]);
  for (int i = 0; i < Count; ++i) hn::StoreU(sum[0][i], d, out + i * lanes);
}

template <class T>
HWY_INLINE void RunLanes(const DepthwiseLanes<T>& call) {
  for (std::int64_t row = 0; row < call.rows; ++row)
    EachTile(call.columns, 8, [&](std::int64_t column, int count) HWY_ATTR {
      switch (count) {
        case 1: return LanesTile<1>(call, row, column);
        case 2: return LanesTile<2>(call, row, column);
        case 3: return LanesTile<3>(call, row, column);
        case 4: return LanesTile<4>(call, row, column);
        case 5: return LanesTile<5>(call, row, column);
        case 6: return LanesTile<6>(call, row, column);
        case 7: return LanesTile<7>(call, row, column);
        default: return LanesTile<8>(call, row, column);
      }
    });
}

template <class T>
HWY_INLINE void SplitRow(const T* from, std::int64_t count, std::int64_t before, std::int64_t phases, std::int64_t width, T* to) {
  for (std::int64_t phase = before % phases, first = 0; first < std::min(phases, count);
       ++first, phase = phase + 1 == phases ? 0 : phase + 1) {
    T* next = to + phase * width + (before + first) / phases;
    for (std::int64_t i = first; i < count; i += phases) *next++ = from[i];
  }
}

template <class T>
HWY_INLINE void SplitPhases(const PlaneCopy<T>& copy) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t rows = copy.rows, from_row = copy.from_row, to_row = copy.to_row;
  const T* from = copy.from;
  if (copy.phases == 1) {
    const std::int64_t whole = copy.columns - copy.columns % lanes;
    const auto rest = static_cast<std::size_t>(copy.columns - whole);
    T* to = copy.to + copy.before;
    for (std::int64_t row = 0; row < rows; ++row, from += from_row, to += to_row) {
      for (std::int64_t i = 0; i < whole; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
      if (rest > 0) hn::StoreU(LoadSome(d, from + whole, rest), d, to + whole);
    }
    return;
  }
#if HWY_TARGET != HWY_SCALAR
  if (copy.phases == 2) {
    const std::int64_t whole = copy.columns - copy.columns % (2 * lanes), rest = copy.columns - whole;
    const auto low_rest = static_cast<std::size_t>(std::min(rest, lanes)), high_rest = static_cast<std::size_t>(rest) - low_rest;
    const auto even_rest = static_cast<std::size_t>((rest + 1) / 2), odd_rest = static_cast<std::size_t>(rest / 2);
    T* even = copy.to + copy.before % 2 * copy.phase_step + copy.before / 2;
    T* odd = copy.to + (copy.before + 1) % 2 * copy.phase_step + (copy.before + 1) / 2;
    for (std::int64_t row = 0; row < rows; ++row, from += from_row, even += to_row, odd += to_row) {
      for (std::int64_t i = 0; i < whole; i += 2 * lanes) {
        const auto low = hn::LoadU(d, from + i), high = hn::LoadU(d, from + i + lanes);
        hn::StoreU(hn::ConcatEven(d, high, low), d, even + i / 2);
        hn::StoreU(hn::ConcatOdd(d, high, low), d, odd + i / 2);
      }
      if (rest == 0) continue;
      const auto low = LoadSome(d, from + whole, low_rest);
      const auto high = high_rest > 0 ? LoadSome(d, from + whole + lanes, high_rest) : hn::Zero(d);
      StoreFirst(d, hn::ConcatEven(d, high, low), even + whole / 2, even_rest);
      StoreFirst(d, hn::ConcatOdd(d, high, low), odd + whole / 2, odd_rest);
    }
    return;
  }
#endif
  for (std::int64_t row = 0; row < rows; ++row)
    SplitRow(from + row * from_row, copy.columns, copy.before, copy.phases, copy.phase_step, copy.to + row * to_row);
}

/// Elements side by side. The last vector overlaps the one before it.
template <class T>
HWY_INLINE void CopyRun(const T* from, std::int64_t count, T* to) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  if (count < lanes) return StoreSome(d, LoadSome(d, from, static_cast<std::size_t>(count)), to, static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i + lanes < count; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  hn::StoreU(hn::LoadU(d, from + count - lanes), d, to + count - lanes);
}

template <class T>
HWY_INLINE void PackRuns(const T* x, const std::int64_t* offsets, std::int64_t k, const PlaceRun* runs, std::int64_t count,
                         std::int64_t width, T* panel) {
  for (std::int64_t at = 0; at < k; ++at, panel += width)
    for (const PlaceRun* run = runs; run != runs + count; ++run) CopyRun(x + offsets[at] + run->start, run->count, panel + run->first);
}

void PackRunsF32(const float* x, const std::int64_t* offsets, std::int64_t k, const PlaceRun* runs, std::int64_t count, std::int64_t width,
                 float* panel) {
  PackRuns(x, offsets, k, runs, count, width, panel);
}
void PackRunsF64(const double* x, const std::int64_t* offsets, std::int64_t k, const PlaceRun* runs, std::int64_t count, std::int64_t width,
                 double* panel) {
  PackRuns(x, offsets, k, runs, count, width, panel);
}
void RunPlaneF32(const DepthwiseCall<float>& call) { RunPlane(call); }
void RunPlaneF64(const DepthwiseCall<double>& call) { RunPlane(call); }
void RunLanesF32(const DepthwiseLanes<float>& call) { RunLanes(call); }
void RunLanesF64(const DepthwiseLanes<double>& call) { RunLanes(call); }
void SplitPhasesF32(const PlaneCopy<float>& copy) { SplitPhases(copy); }
void SplitPhasesF64(const PlaneCopy<double>& copy) { SplitPhases(copy); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunPlaneF32);
HWY_EXPORT(RunPlaneF64);
HWY_EXPORT(RunLanesF32);
HWY_EXPORT(RunLanesF64);
HWY_EXPORT(PackRunsF32);
HWY_EXPORT(PackRunsF64);
HWY_EXPORT(SplitPhasesF32);
HWY_EXPORT(SplitPhasesF64);

void depthwise_plane(const DepthwiseCall<float>& call) { HWY_DYNAMIC_DISPATCH(RunPlaneF32)(call); }
void depthwise_plane(const DepthwiseCall<double>& call) { HWY_DYNAMIC_DISPATCH(RunPlaneF64)(call); }
void depthwise_lanes(const DepthwiseLanes<float>& call) { HWY_DYNAMIC_DISPATCH(RunLanesF32)(call); }
void depthwise_lanes(const DepthwiseLanes<double>& call) { HWY_DYNAMIC_DISPATCH(RunLanesF64)(call); }
void pack_runs(const float* x, const std::int64_t* offsets, std::int64_t k, const PlaceRun* runs, std::int64_t count, std::int64_t width,
               float* panel) {
  HWY_DYNAMIC_DISPATCH(PackRunsF32)(x, offsets, k, runs, count, width, panel);
}
void pack_runs(const double* x, const std::int64_t* offsets, std::int64_t k, const PlaceRun* runs, std::int64_t count, std::int64_t width,
               double* panel) {
  HWY_DYNAMIC_DISPATCH(PackRunsF64)(x, offsets, k, runs, count, width, panel);
}
void split_phases(const PlaneCopy<float>& copy) { HWY_DYNAMIC_DISPATCH(SplitPhasesF32)(copy); }
void split_phases(const PlaneCopy<double>& copy) { HWY_DYNAMIC_DISPATCH(SplitPhasesF64)(copy); }

}  // namespace millrace::cpu
#endif
