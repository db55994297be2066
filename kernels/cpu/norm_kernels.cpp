// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/norm_kernels.h>

#include <algorithm>
#include <cmath>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/norm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/chains-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

void RunNormGradientF32(const NormGradientRow<float>& row, std::int64_t n) { RunNormGradient(row, n); }
void RunNormGradientF64(const NormGradientRow<double>& row, std::int64_t n) { RunNormGradient(row, n); }
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

HWY_EXPORT(RunLayerNormF32);
HWY_EXPORT(RunLayerNormF64);
HWY_EXPORT(RunNormGradientF32);
HWY_EXPORT(RunNormGradientF64);

void layer_norm_rows(float* const* rows, int count, std::int64_t n, const float* scale, const float* bias, float epsilon) {
  HWY_DYNAMIC_DISPATCH(RunLayerNormF32)(rows, count, n, scale, bias, epsilon);
}
void layer_norm_rows(double* const* rows, int count, std::int64_t n, const double* scale, const double* bias, double epsilon) {
  HWY_DYNAMIC_DISPATCH(RunLayerNormF64)(rows, count, n, scale, bias, epsilon);
}
void layer_norm_gradient_row(const NormGradientRow<float>& row, std::int64_t n) { HWY_DYNAMIC_DISPATCH(RunNormGradientF32)(row, n); }
void layer_norm_gradient_row(const NormGradientRow<double>& row, std::int64_t n) { HWY_DYNAMIC_DISPATCH(RunNormGradientF64)(row, n); }

}  // namespace millrace::cpu
#endif
