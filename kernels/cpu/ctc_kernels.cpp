// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/ctc_kernels.h>

#include <iterator>
#include <limits>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/ctc_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/elementary-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// log(1 + x) of f64 for 0 ≤ x ≤ 2, within 1.1 ulp; NaN stays one. With s = f / (2 + f), log(1 + f) = f − (f²/2 − s·(f²/2 + R)), where R is the series of
/// log((1 + s) / (1 − s)) / s less 2, as in fdlibm; its first term left out is 2^-55 of the result for the greatest s, 1/5.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log1pOfTwo(D d, V x) {
  static constexpr double r[] = {2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  const V half = hn::Set(d, 0.5);
  const auto upper = hn::Gt(x, half);
  const V f = hn::IfThenElse(upper, hn::Sub(hn::Mul(x, half), half), x);  // (1 + x) / 2 − 1 above
  const V high = hn::IfThenElseZero(upper, hn::Set(d, ExpNumbers<double>::ln2_high));
  const V low = hn::IfThenElseZero(upper, hn::Set(d, ExpNumbers<double>::ln2_low));
  const V s = hn::Div(f, hn::Add(hn::Set(d, 2.0), f));
  const V z = hn::Mul(s, s);
  const V square = hn::Mul(hn::Mul(half, f), f);
  V series = hn::Set(d, r[std::size(r) - 1]);
  for (std::size_t i = std::size(r) - 1; i-- > 0;) series = hn::MulAdd(series, z, hn::Set(d, r[i]));
  const V tail = hn::MulAdd(s, hn::MulAdd(z, series, square), low);
  return hn::Sub(high, hn::Sub(hn::Sub(square, tail), f));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogSumOfThree(D d, V a, V b, V c) {
  const V upper = hn::Max(a, b), lower = hn::Min(a, b);
  const V most = hn::Max(upper, c), middle = hn::Max(lower, hn::Min(upper, c)), least = hn::Min(lower, c);
  const V others = hn::Add(ExpNegative(d, hn::Sub(middle, most)), ExpNegative(d, hn::Sub(least, most)));
  const V sum = hn::IfThenElse(hn::IsInf(most), most, hn::Add(most, Log1pOfTwo(d, others)));
  const auto odd = hn::Or(hn::IsNaN(a), hn::Or(hn::IsNaN(b), hn::IsNaN(c)));
  return hn::IfThenElse(odd, hn::Add(hn::Add(a, b), c), sum);
}

void LogSumsOfThree(const LogTerms& terms, double* to, std::int64_t count) {
  const hn::ScalableTag<double> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto impossible = hn::Set(d, -std::numeric_limits<double>::infinity());
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto open = hn::Ne(hn::LoadU(d, terms.open + i), hn::Zero(d));
    const auto third = hn::IfThenElse(open, hn::LoadU(d, terms.third + i), impossible);
    hn::StoreU(LogSumOfThree(d, hn::LoadU(d, terms.first + i), hn::LoadU(d, terms.second + i), third), d, to + i);
  }
  if (i == count) return;
  const auto some = static_cast<std::size_t>(count - i);
  const auto open = hn::Ne(LoadSome(d, terms.open + i, some), hn::Zero(d));
  const auto third = hn::IfThenElse(open, LoadSome(d, terms.third + i, some), impossible);
  StoreSome(d, LogSumOfThree(d, LoadSome(d, terms.first + i, some), LoadSome(d, terms.second + i, some), third), to + i, some);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(LogSumsOfThree);

void log_sums_of_three(const LogTerms& terms, double* to, std::int64_t count) { HWY_DYNAMIC_DISPATCH(LogSumsOfThree)(terms, to, count); }

}  // namespace millrace::cpu
#endif
