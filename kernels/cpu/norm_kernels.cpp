// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/norm_kernels.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/norm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/chains-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The rows whose chains are added up side by side: as many as leave registers for what is added.
template <class T>
inline constexpr int TogetherOf() {
  return std::max(1, norm_rows / Chains<T>::parts);
}

/// f(first, rows) on all of `count` rows, `rows` a constant.
template <int Together, class F>
HWY_INLINE void EachTogether(int count, F f) {
  int first = 0;
  for (; first + Together <= count; first += Together) f(first, std::integral_constant<int, Together>());
  if constexpr (Together > 1)
    for (; first < count; ++first) f(first, std::integral_constant<int, 1>());
}

/// totals[row] = Σ f(row, x[row][i]) in the chains of kernels/layer_norm.h.
template <int Rows, class T, class F>
HWY_INLINE void ChainedSums(const T* const* x, std::int64_t n, F f, T* totals) {
  const typename Chains<T>::D d;
  constexpr int lanes = Chains<T>::lanes, parts = Chains<T>::parts;
  Chains<T> sums[Rows];
  for (int row = 0; row < Rows; ++row) sums[row].clear();
  std::int64_t i = 0;
  for (; i + norm_chains <= n; i += norm_chains)
    for (int p = 0; p < parts; ++p)
      for (int row = 0; row < Rows; ++row) sums[row].part[p] = hn::Add(sums[row].part[p], f(d, row, hn::LoadU(d, x[row] + i + p * lanes)));
  for (int p = 0; i < n; ++p, i += lanes) {
    const auto some = static_cast<std::size_t>(std::min<std::int64_t>(lanes, n - i));
    const auto there = hn::FirstN(d, some);
    for (int row = 0; row < Rows; ++row)
      sums[row].part[p] = hn::Add(sums[row].part[p], hn::IfThenElseZero(there, f(d, row, LoadSome(d, x[row] + i, some))));
  }
  for (int row = 0; row < Rows; ++row) totals[row] = sums[row].total();
}

template <class T>
struct Moments {
  T mean, factor;
};

/// Computes the mean of each row, and 1 / √(variance + epsilon).
template <int Rows, class T>
HWY_INLINE void FindMoments(const T* const* x, std::int64_t n, T epsilon, Moments<T>* moments) {
  const T elements = static_cast<T>(n);
  T sums[Rows], squares[Rows];
  ChainedSums<Rows>(x, n, [](auto, int, auto value) HWY_ATTR { return value; }, sums);
  for (int row = 0; row < Rows; ++row) moments[row].mean = sums[row] / elements;
  const auto square = [moments](auto d, int row, auto value) HWY_ATTR {
    const auto from = hn::Sub(value, hn::Set(d, moments[row].mean));
    return hn::Mul(from, from);
  };
  ChainedSums<Rows>(x, n, square, squares);
  for (int row = 0; row < Rows; ++row) moments[row].factor = T{1} / std::sqrt(squares[row] / elements + epsilon);
}

/// to = (from − mean)·factor·scale (+ bias).
template <class T>
HWY_INLINE void ScaleRow(const T* from, T* to, std::int64_t n, const Moments<T>& moments, const T* scale, const T* bias) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto means = hn::Set(d, moments.mean), factors = hn::Set(d, moments.factor);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto scaled = hn::Mul(hn::Mul(hn::Sub(hn::LoadU(d, from + i), means), factors), hn::LoadU(d, scale + i));
    hn::StoreU(bias == nullptr ? scaled : hn::Add(scaled, hn::LoadU(d, bias + i)), d, to + i);
  }
  for (; i < n; ++i) {
    const T scaled = (from[i] - moments.mean) * moments.factor * scale[i];
    to[i] = bias == nullptr ? scaled : scaled + bias[i];
  }
}

template <class T>
void RunLayerNorm(const T* const* from, T* const* to, int count, std::int64_t n, const T* scale, const T* bias, T epsilon) {
  EachTogether<TogetherOf<T>()>(count, [&](int first, auto rows) HWY_ATTR {
    Moments<T> moments[rows];
    FindMoments<rows>(from + first, n, epsilon, moments);
    for (int row = 0; row < rows; ++row) ScaleRow(from[first + row], to[first + row], n, moments[row], scale, bias);
  });
}

template <class T>
struct Slopes {
  T total, along;
};

/// Computes both sums of each row over the slopes s = g·scale, and the rows of the gradient of scale.
template <int Rows, class T>
HWY_INLINE void SumSlopes(const NormGradientRow<T>* rows, std::int64_t n, const Moments<T>* moments, Slopes<T>* sums) {
  const typename Chains<T>::D d;
  constexpr int lanes = Chains<T>::lanes, parts = Chains<T>::parts;
  // Copies: a compiler cannot know that the outputs are none of these.
  const T *x[Rows], *g[Rows], *scale[Rows];
  T* products[Rows];
  Chains<T> totals[Rows], alongs[Rows];
  hn::Vec<decltype(d)> means[Rows], factors[Rows];
  for (int row = 0; row < Rows; ++row) {
    x[row] = rows[row].x;
    g[row] = rows[row].g;
    scale[row] = rows[row].scale;
    products[row] = rows[row].rows;
    means[row] = hn::Set(d, moments[row].mean);
    factors[row] = hn::Set(d, moments[row].factor);
    totals[row].clear();
    alongs[row].clear();
  }
  std::int64_t i = 0;
  for (; i + norm_chains <= n; i += norm_chains) {
    for (int p = 0; p < parts; ++p) {
      const std::int64_t at = i + p * lanes;
      for (int row = 0; row < Rows; ++row) {
        const auto gradient = hn::LoadU(d, g[row] + at);
        const auto normal = hn::Mul(hn::Sub(hn::LoadU(d, x[row] + at), means[row]), factors[row]);
        const auto slope = hn::Mul(gradient, hn::LoadU(d, scale[row] + at));
        hn::StoreU(hn::Mul(gradient, normal), d, products[row] + at);
        totals[row].part[p] = hn::Add(totals[row].part[p], slope);
        alongs[row].part[p] = hn::Add(alongs[row].part[p], hn::Mul(slope, normal));
      }
    }
  }
  for (int p = 0; i < n; ++p, i += lanes) {
    const auto some = static_cast<std::size_t>(std::min<std::int64_t>(lanes, n - i));
    const auto there = hn::FirstN(d, some);
    for (int row = 0; row < Rows; ++row) {
      const auto gradient = LoadSome(d, g[row] + i, some);
      const auto normal = hn::Mul(hn::Sub(LoadSome(d, x[row] + i, some), means[row]), factors[row]);
      const auto slope = hn::Mul(gradient, LoadSome(d, scale[row] + i, some));
      StoreSome(d, hn::Mul(gradient, normal), products[row] + i, some);
      totals[row].part[p] = hn::Add(totals[row].part[p], hn::IfThenElseZero(there, slope));
      alongs[row].part[p] = hn::Add(alongs[row].part[p], hn::IfThenElseZero(there, hn::Mul(slope, normal)));
    }
  }
  const T elements = static_cast<T>(n);
  for (int row = 0; row < Rows; ++row) sums[row] = {totals[row].total() / elements, alongs[row].total() / elements};
}

template <class T>
HWY_INLINE void GradientRow(const NormGradientRow<T>& row, std::int64_t n, const Moments<T>& moments, const Slopes<T>& sums) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T mean = moments.mean, factor = moments.factor;
  const auto means = hn::Set(d, mean), factors = hn::Set(d, factor), totals = hn::Set(d, sums.total), alongs = hn::Set(d, sums.along);
  const T *x = row.x, *slopes = row.g, *scale = row.scale;
  T* dx = row.dx;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto normal = hn::Mul(hn::Sub(hn::LoadU(d, x + i), means), factors);
    const auto slope = hn::Mul(hn::LoadU(d, slopes + i), hn::LoadU(d, scale + i));
    hn::StoreU(hn::Mul(factors, hn::Sub(hn::Sub(slope, totals), hn::Mul(normal, alongs))), d, dx + i);
  }
  for (; i < n; ++i) dx[i] = factor * ((slopes[i] * scale[i] - sums.total) - (x[i] - mean) * factor * sums.along);
}

template <class T>
void RunNormGradient(const NormGradientRow<T>* all, int count, std::int64_t n, T epsilon) {
  EachTogether<TogetherOf<T>()>(count, [&](int first, auto rows) HWY_ATTR {
    Moments<T> moments[rows];
    Slopes<T> sums[rows];
    const T* x[rows];
    for (int row = 0; row < rows; ++row) x[row] = all[first + row].x;
    FindMoments<rows>(x, n, epsilon, moments);
    SumSlopes<rows>(all + first, n, moments, sums);
    for (int row = 0; row < rows; ++row) GradientRow(all[first + row], n, moments[row], sums[row]);
  });
}

void RunNormGradientF32(const NormGradientRow<float>* rows, int count, std::int64_t n, float epsilon) {
  RunNormGradient(rows, count, n, epsilon);
}
void RunNormGradientF64(const NormGradientRow<double>* rows, int count, std::int64_t n, double epsilon) {
  RunNormGradient(rows, count, n, epsilon);
}
void RunLayerNormF32(const float* const* from, float* const* to, int count, std::int64_t n, const float* scale, const float* bias,
                     float epsilon) {
  RunLayerNorm(from, to, count, n, scale, bias, epsilon);
}
void RunLayerNormF64(const double* const* from, double* const* to, int count, std::int64_t n, const double* scale, const double* bias,
                     double epsilon) {
  RunLayerNorm(from, to, count, n, scale, bias, epsilon);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunLayerNormF32);
HWY_EXPORT(RunLayerNormF64);
HWY_EXPORT(RunNormGradientF32);
HWY_EXPORT(RunNormGradientF64);

void layer_norm_rows(const float* const* from, float* const* to, int count, std::int64_t n, const float* scale, const float* bias,
                     float epsilon) {
  HWY_DYNAMIC_DISPATCH(RunLayerNormF32)(from, to, count, n, scale, bias, epsilon);
}
void layer_norm_rows(const double* const* from, double* const* to, int count, std::int64_t n, const double* scale, const double* bias,
                     double epsilon) {
  HWY_DYNAMIC_DISPATCH(RunLayerNormF64)(from, to, count, n, scale, bias, epsilon);
}
void layer_norm_gradient_rows(const NormGradientRow<float>* rows, int count, std::int64_t n, float epsilon) {
  HWY_DYNAMIC_DISPATCH(RunNormGradientF32)(rows, count, n, epsilon);
}
void layer_norm_gradient_rows(const NormGradientRow<double>* rows, int count, std::int64_t n, double epsilon) {
  HWY_DYNAMIC_DISPATCH(RunNormGradientF64)(rows, count, n, epsilon);
}

}  // namespace millrace::cpu
#endif
