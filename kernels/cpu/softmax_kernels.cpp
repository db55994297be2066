// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/softmax_kernels.h>

#include <algorithm>
#include <cmath>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/softmax_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/chains-inl.h>
#include <millrace/kernels/cpu/elementary-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The greatest element but NaN, which the sum of powers finds.
template <class T>
HWY_INLINE T Greatest(const T* x, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  if (n < lanes) {
    T most = x[0];
    for (std::int64_t i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
    return most;
  }
  auto first = hn::LoadU(d, x + n - lanes), second = first;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    first = hn::Max(first, hn::LoadU(d, x + i));
    second = hn::Max(second, hn::LoadU(d, x + i + lanes));
  }
  if (i + lanes <= n) first = hn::Max(first, hn::LoadU(d, x + i));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(first, second)));
}

/// Σ exp(x[i] − most) in the chains of kernels/layer_norm.h; the powers go to `powers` unless that is null.
template <class T>
HWY_INLINE T SumPowers(const T* x, T most, T* powers, std::int64_t n) {
  const typename Chains<T>::D d;
  constexpr int lanes = Chains<T>::lanes;
  const auto shift = hn::Set(d, most);
  Chains<T> sums;
  sums.clear();
  std::int64_t i = 0;
  for (; i + norm_chains <= n; i += norm_chains) {
    for (int p = 0; p < Chains<T>::parts; ++p) {
      const auto power = ExpNegative(d, hn::Sub(hn::LoadU(d, x + i + p * lanes), shift));
      if (powers != nullptr) hn::StoreU(power, d, powers + i + p * lanes);
      sums.part[p] = hn::Add(sums.part[p], power);
    }
  }
  for (int p = 0; i < n; ++p, i += lanes) {
    const auto some = static_cast<std::size_t>(std::min<std::int64_t>(lanes, n - i));
    const auto power = ExpNegative(d, hn::Sub(LoadSome(d, x + i, some), shift));
    if (powers != nullptr) StoreSome(d, power, powers + i, some);
    sums.part[p] = hn::Add(sums.part[p], hn::IfThenElseZero(hn::FirstN(d, some), power));
  }
  return sums.total();
}

template <class T>
HWY_INLINE void SoftmaxRow(const T* from, T* to, std::int64_t n) {
  const T factor = T{1} / SumPowers(from, Greatest(from, n), to, n);
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factors = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, to + i), factors), d, to + i);
  for (; i < n; ++i) to[i] *= factor;
}

template <class T>
HWY_INLINE void LogSoftmaxRow(const T* from, T* to, std::int64_t n) {
  const T most = Greatest(from, n);
  const T norm = std::log(SumPowers(from, most, static_cast<T*>(nullptr), n));
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, most), norms = hn::Set(d, norm);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Sub(hn::Sub(hn::LoadU(d, from + i), shift), norms), d, to + i);
  for (; i < n; ++i) to[i] = (from[i] - most) - norm;
}

void SoftmaxRowF32(const float* from, float* to, std::int64_t n) { SoftmaxRow(from, to, n); }
void SoftmaxRowF64(const double* from, double* to, std::int64_t n) { SoftmaxRow(from, to, n); }
void LogSoftmaxRowF32(const float* from, float* to, std::int64_t n) { LogSoftmaxRow(from, to, n); }
void LogSoftmaxRowF64(const double* from, double* to, std::int64_t n) { LogSoftmaxRow(from, to, n); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(SoftmaxRowF32);
HWY_EXPORT(SoftmaxRowF64);
HWY_EXPORT(LogSoftmaxRowF32);
HWY_EXPORT(LogSoftmaxRowF64);

void softmax_row(const float* from, float* to, std::int64_t n) { HWY_DYNAMIC_DISPATCH(SoftmaxRowF32)(from, to, n); }
void softmax_row(const double* from, double* to, std::int64_t n) { HWY_DYNAMIC_DISPATCH(SoftmaxRowF64)(from, to, n); }
void log_softmax_row(const float* from, float* to, std::int64_t n) { HWY_DYNAMIC_DISPATCH(LogSoftmaxRowF32)(from, to, n); }
void log_softmax_row(const double* from, double* to, std::int64_t n) { HWY_DYNAMIC_DISPATCH(LogSoftmaxRowF64)(from, to, n); }

}  // namespace millrace::cpu
#endif
