// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/norm_kernels.h>

#include <algorithm>
#include <cmath>

#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/norm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Elements [begin, end) of `Rows` rows, one chain of additions each.
template <int Rows, class T>
HWY_INLINE void SumApart(const T* const* rows, std::int64_t begin, std::int64_t end, T* sums) {
  T sum[Rows];
  for (int r = 0; r < Rows; ++r) sum[r] = sums[r];
  for (std::int64_t i = begin; i < end; ++i)
    for (int r = 0; r < Rows; ++r) sum[r] += rows[r][i];
  for (int r = 0; r < Rows; ++r) sums[r] = sum[r];
}

#if HWY_TARGET != HWY_SCALAR
/// The first elements of as many rows as there are lanes, 16 bytes of each: block 0 holds row `row`, block 1 the row half a vector on.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const T* const* rows, std::int64_t i, int row) {
  constexpr int half = static_cast<int>(hn::MaxLanes(d)) / 2;
  if constexpr (sizeof(T) * hn::MaxLanes(d) == 32) {
    const hn::Half<D> part;
    return hn::Combine(d, hn::LoadU(part, rows[row + half] + i), hn::LoadU(part, rows[row] + i));
  } else {
    return hn::LoadU(d, rows[row] + i);
  }
}

/// A vector has a lane for each row: four elements (two of f64) of every row are turned into so many vectors, one for each i.
template <class D>
HWY_INLINE hn::Vec<D> SumBlocks(D d, const float* const* rows, std::int64_t i, hn::Vec<D> sum) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> wide;
  const auto low = [&](auto a, auto b)
                       HWY_ATTR { return hn::BitCast(d, hn::InterleaveLower(wide, hn::BitCast(wide, a), hn::BitCast(wide, b))); };
  const auto high = [&](auto a, auto b)
                        HWY_ATTR { return hn::BitCast(d, hn::InterleaveUpper(wide, hn::BitCast(wide, a), hn::BitCast(wide, b))); };
  const auto r0 = LoadBlocks(d, rows, i, 0), r1 = LoadBlocks(d, rows, i, 1), r2 = LoadBlocks(d, rows, i, 2), r3 = LoadBlocks(d, rows, i, 3);
  const auto a = hn::InterleaveLower(d, r0, r1), b = hn::InterleaveLower(d, r2, r3);
  const auto c = hn::InterleaveUpper(d, r0, r1), e = hn::InterleaveUpper(d, r2, r3);
  sum = hn::Add(hn::Add(sum, low(a, b)), high(a, b));
  return hn::Add(hn::Add(sum, low(c, e)), high(c, e));
}
template <class D>
HWY_INLINE hn::Vec<D> SumBlocks(D d, const double* const* rows, std::int64_t i, hn::Vec<D> sum) {
  const auto r0 = LoadBlocks(d, rows, i, 0), r1 = LoadBlocks(d, rows, i, 1);
  return hn::Add(hn::Add(sum, hn::InterleaveLower(d, r0, r1)), hn::InterleaveUpper(d, r0, r1));
}

/// sums[r] += Σ (row r) over [begin, end), in order; as many rows as a vector has lanes, the first of them `row`.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void SumLanes(D d, const T* const* rows, int row, std::int64_t begin, std::int64_t end, T* sums) {
  constexpr auto step = static_cast<std::int64_t>(16 / sizeof(T));
  auto sum = hn::Zero(d);
  std::int64_t i = begin;
  for (; i + step <= end; i += step) sum = SumBlocks(d, rows + row, i, sum);
  hn::StoreU(sum, d, sums + row);
  for (int r = row; r < row + static_cast<int>(hn::MaxLanes(d)); ++r)
    for (std::int64_t at = i; at < end; ++at) sums[r] += rows[r][at];
}

#endif

/// All arrays hold sum_rows rows, of which `count` are needed.
template <class T>
HWY_INLINE void SumRows(const T* const* rows, int count, std::int64_t n, T* total) {
  for (int r = 0; r < sum_rows; ++r) total[r] = 0;
  for (std::int64_t begin = 0; begin < n; begin += k_block) {
    const std::int64_t end = std::min(n, begin + k_block);
    T sum[sum_rows] = {};
    if (count == 1) {
      SumApart<1>(rows, begin, end, sum);
    } else if (count == 2) {
      SumApart<2>(rows, begin, end, sum);
    } else {
#if HWY_TARGET == HWY_SCALAR
      SumApart<sum_rows>(rows, begin, end, sum);
#else
      const hn::CappedTag<T, 32 / sizeof(T)> d;
      for (int row = 0; row < count; row += static_cast<int>(hn::MaxLanes(d))) SumLanes(d, rows, row, begin, end, sum);
#endif
    }
    for (int r = 0; r < count; ++r) total[r] = begin == 0 ? sum[r] : total[r] + sum[r];
  }
}

template <class T>
void RunSums(const T* const* rows, int count, std::int64_t n, T* sums) {
  const T* all[sum_rows];
  T total[sum_rows];
  for (int r = 0; r < sum_rows; ++r) all[r] = rows[std::min(r, count - 1)];
  SumRows(all, count, n, total);
  std::copy_n(total, count, sums);
}

/// row = (row − mean)·factor·scale (+ bias).
template <class T>
HWY_INLINE void ScaleRow(T* row, std::int64_t n, T mean, T factor, const T* scale, const T* bias) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto means = hn::Set(d, mean), factors = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto scaled = hn::Mul(hn::Mul(hn::Sub(hn::LoadU(d, row + i), means), factors), hn::LoadU(d, scale + i));
    hn::StoreU(bias == nullptr ? scaled : hn::Add(scaled, hn::LoadU(d, bias + i)), d, row + i);
  }
  for (; i < n; ++i) {
    const T scaled = (row[i] - mean) * factor * scale[i];
    row[i] = bias == nullptr ? scaled : scaled + bias[i];
  }
}

struct Element {
  template <class T>
  HWY_INLINE T one(T x) const {
    return x;
  }
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V all(D, V x) const {
    return x;
  }
};

template <class T>
struct SquaredFrom {
  T mean;
  HWY_INLINE T one(T x) const { return (x - mean) * (x - mean); }
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V all(D d, V x) const {
    const V from = hn::Sub(x, hn::Set(d, mean));
    return hn::Mul(from, from);
  }
};

/// Adds the chains of kernels/layer_norm.h in halves.
template <class T>
HWY_INLINE T Halved(T* chains) {
  for (int half = norm_chains / 2; half > 0; half /= 2)
    for (int chain = 0; chain < half; ++chain) chains[chain] += chains[chain + half];
  return chains[0];
}

/// Σ f(x[i]) in the chains of kernels/layer_norm.h.
template <class T, class F>
HWY_INLINE T ChainedSum(const T* x, std::int64_t n, const F& f) {
  const hn::CappedTag<T, norm_chains> d;
  constexpr auto lanes = static_cast<int>(hn::MaxLanes(d));
  constexpr int parts = norm_chains / lanes;
  hn::Vec<decltype(d)> sum[parts];
  for (int p = 0; p < parts; ++p) sum[p] = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + norm_chains <= n; i += norm_chains)
    for (int p = 0; p < parts; ++p) sum[p] = hn::Add(sum[p], f.all(d, hn::LoadU(d, x + i + p * lanes)));
  HWY_ALIGN T chains[norm_chains];
  for (int p = 0; p < parts; ++p) hn::Store(sum[p], d, chains + p * lanes);
  for (int chain = 0; i < n; ++i, ++chain) chains[chain] += f.one(x[i]);
  return Halved(chains);
}

template <class T>
void RunLayerNorm(T* const* rows, int count, std::int64_t n, const T* scale, const T* bias, T epsilon) {
  const T elements = static_cast<T>(n);
  for (int r = 0; r < count; ++r) {
    const T mean = ChainedSum(rows[r], n, Element()) / elements;
    const T variance = ChainedSum(rows[r], n, SquaredFrom<T>{mean}) / elements;
    ScaleRow(rows[r], n, mean, T{1} / std::sqrt(variance + epsilon), scale, bias);
  }
}

/// Both sums over the slopes s = g·scale at once, and the rows of the gradient of scale.
template <class T>
HWY_INLINE void SumSlopes(const NormGradientRow<T>& row, std::int64_t n, T mean, T factor, T& total, T& along) {
  const hn::CappedTag<T, norm_chains> d;
  constexpr auto lanes = static_cast<int>(hn::MaxLanes(d));
  constexpr int parts = norm_chains / lanes;
  // Copies: what is written might be one of these for all that a compiler knows.
  const T *x = row.x, *slopes = row.g, *scale = row.scale;
  T* rows = row.rows;
  const auto means = hn::Set(d, mean), factors = hn::Set(d, factor);
  hn::Vec<decltype(d)> sums[parts], products[parts];
  for (int p = 0; p < parts; ++p) sums[p] = products[p] = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + norm_chains <= n; i += norm_chains) {
    for (int p = 0; p < parts; ++p) {
      const std::int64_t at = i + p * lanes;
      const auto g = hn::LoadU(d, slopes + at);
      const auto normal = hn::Mul(hn::Sub(hn::LoadU(d, x + at), means), factors);
      const auto slope = hn::Mul(g, hn::LoadU(d, scale + at));
      hn::StoreU(hn::Mul(g, normal), d, rows + at);
      sums[p] = hn::Add(sums[p], slope);
      products[p] = hn::Add(products[p], hn::Mul(slope, normal));
    }
  }
  HWY_ALIGN T chains[2][norm_chains];
  for (int p = 0; p < parts; ++p) {
    hn::Store(sums[p], d, chains[0] + p * lanes);
    hn::Store(products[p], d, chains[1] + p * lanes);
  }
  for (int chain = 0; i < n; ++i, ++chain) {
    const T normal = (x[i] - mean) * factor, slope = slopes[i] * scale[i];
    rows[i] = slopes[i] * normal;
    chains[0][chain] += slope;
    chains[1][chain] += slope * normal;
  }
  total = Halved(chains[0]);
  along = Halved(chains[1]);
}

template <class T>
void RunNormGradient(const NormGradientRow<T>& row, std::int64_t n) {
  const T elements = static_cast<T>(n);
  const T mean = ChainedSum(row.x, n, Element()) / elements;
  const T variance = ChainedSum(row.x, n, SquaredFrom<T>{mean}) / elements;
  const T factor = T{1} / std::sqrt(variance + row.epsilon);
  T total, along;
  SumSlopes(row, n, mean, factor, total, along);
  total /= elements;
  along /= elements;
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto means = hn::Set(d, mean), factors = hn::Set(d, factor), totals = hn::Set(d, total), alongs = hn::Set(d, along);
  const T *x = row.x, *slopes = row.g, *scale = row.scale;
  T* dx = row.dx;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto normal = hn::Mul(hn::Sub(hn::LoadU(d, x + i), means), factors);
    const auto slope = hn::Mul(hn::LoadU(d, slopes + i), hn::LoadU(d, scale + i));
    hn::StoreU(hn::Mul(factors, hn::Sub(hn::Sub(slope, totals), hn::Mul(normal, alongs))), d, dx + i);
  }
  for (; i < n; ++i) dx[i] = factor * ((slopes[i] * scale[i] - total) - (x[i] - mean) * factor * along);
}

/// The sums of `columns` columns of `n` rows in the order of kernels/reduce.h, `Vectors` vectors of them side by side.
template <int Vectors, class T>
HWY_INLINE void SumColumns(const T* from, std::int64_t n, std::int64_t stride, T* to) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> total[Vectors];
  for (std::int64_t begin = 0; begin == 0 || begin < n; begin += k_block) {
    hn::Vec<decltype(d)> part[Vectors];
    for (int v = 0; v < Vectors; ++v) part[v] = hn::Zero(d);
    for (std::int64_t i = begin; i < std::min(n, begin + k_block); ++i)
      for (int v = 0; v < Vectors; ++v) part[v] = hn::Add(part[v], hn::LoadU(d, from + i * stride + v * lanes));
    for (int v = 0; v < Vectors; ++v) total[v] = begin == 0 ? part[v] : hn::Add(total[v], part[v]);
  }
  for (int v = 0; v < Vectors; ++v) hn::StoreU(total[v], d, to + v * lanes);
}

template <class T>
void RunColumnSums(const T* from, std::int64_t n, std::int64_t stride, std::int64_t columns, T* to) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t at = 0;
  for (; at + 4 * lanes <= columns; at += 4 * lanes) SumColumns<4>(from + at, n, stride, to + at);
  for (; at + lanes <= columns; at += lanes) SumColumns<1>(from + at, n, stride, to + at);
  for (; at < columns; ++at) {
    T total{};
    for (std::int64_t begin = 0; begin < n; begin += k_block) {
      T part{};
      for (std::int64_t i = begin; i < std::min(n, begin + k_block); ++i) part += from[i * stride + at];
      total = begin == 0 ? part : total + part;
    }
    to[at] = total;
  }
}

void RunColumnSumsF32(const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to) {
  RunColumnSums(from, n, stride, columns, to);
}
void RunColumnSumsF64(const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to) {
  RunColumnSums(from, n, stride, columns, to);
}
void RunNormGradientF32(const NormGradientRow<float>& row, std::int64_t n) { RunNormGradient(row, n); }
void RunNormGradientF64(const NormGradientRow<double>& row, std::int64_t n) { RunNormGradient(row, n); }
void RunSumsF32(const float* const* rows, int count, std::int64_t n, float* sums) { RunSums(rows, count, n, sums); }
void RunSumsF64(const double* const* rows, int count, std::int64_t n, double* sums) { RunSums(rows, count, n, sums); }
void RunLayerNormF32(float* const* rows, int count, std::int64_t n, const float* scale, const float* bias, float epsilon) {
  RunLayerNorm(rows, count, n, scale, bias, epsilon);
}
void RunLayerNormF64(double* const* rows, int count, std::int64_t n, const double* scale, const double* bias, double epsilon) {
  RunLayerNorm(rows, count, n, scale, bias, epsilon);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunSumsF32);
HWY_EXPORT(RunSumsF64);
HWY_EXPORT(RunLayerNormF32);
HWY_EXPORT(RunLayerNormF64);
HWY_EXPORT(RunNormGradientF32);
HWY_EXPORT(RunNormGradientF64);
HWY_EXPORT(RunColumnSumsF32);
HWY_EXPORT(RunColumnSumsF64);

void ordered_sums(const float* const* rows, int count, std::int64_t n, float* sums) {
  HWY_DYNAMIC_DISPATCH(RunSumsF32)(rows, count, n, sums);
}
void ordered_sums(const double* const* rows, int count, std::int64_t n, double* sums) {
  HWY_DYNAMIC_DISPATCH(RunSumsF64)(rows, count, n, sums);
}
void layer_norm_rows(float* const* rows, int count, std::int64_t n, const float* scale, const float* bias, float epsilon) {
  HWY_DYNAMIC_DISPATCH(RunLayerNormF32)(rows, count, n, scale, bias, epsilon);
}
void layer_norm_rows(double* const* rows, int count, std::int64_t n, const double* scale, const double* bias, double epsilon) {
  HWY_DYNAMIC_DISPATCH(RunLayerNormF64)(rows, count, n, scale, bias, epsilon);
}
void layer_norm_gradient_row(const NormGradientRow<float>& row, std::int64_t n) { HWY_DYNAMIC_DISPATCH(RunNormGradientF32)(row, n); }
void layer_norm_gradient_row(const NormGradientRow<double>& row, std::int64_t n) { HWY_DYNAMIC_DISPATCH(RunNormGradientF64)(row, n); }
void column_sums(const float* from, std::int64_t n, std::int64_t stride, std::int64_t columns, float* to) {
  HWY_DYNAMIC_DISPATCH(RunColumnSumsF32)(from, n, stride, columns, to);
}
void column_sums(const double* from, std::int64_t n, std::int64_t stride, std::int64_t columns, double* to) {
  HWY_DYNAMIC_DISPATCH(RunColumnSumsF64)(from, n, stride, columns, to);
}

}  // namespace millrace::cpu
#endif
