// SPDX-License-Identifier: Apache-2.0
// Logarithms of vectors of f32. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_LOGARITHM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_LOGARITHM_INL_H
#undef MILLRACE_KERNELS_CPU_LOGARITHM_INL_H
#else
#define MILLRACE_KERNELS_CPU_LOGARITHM_INL_H
#endif

#include <limits>

#include <hwy/highway.h>
#include <millrace/kernels/cpu/elementary-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// log(1 + f) − f for −0.25 ≤ f ≤ 0.5, as f²·(−1/2 + f·P(f)). P has the least greatest relative error of log(1 + f), 2^-27.6 (Lawson's iteration).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogCorrection(D d, V f) {
  static constexpr float p[] = {0.3333345f, -0.25000095f, 0.19990861f, -0.16647312f, 0.14478399f, -0.13161194f, 0.10463006f, -0.0450746f};
  return hn::Mul(hn::Mul(f, f), hn::MulAdd(f, Polynomial(d, p, f), hn::Set(d, -0.5f)));
}

/// x = (1 + f)·2^e with −0.25 ≤ f < 0.5 for finite x > 0, subnormals included. Gives e; every step is exact.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SplitLog(D d, V x, V& f) {
  const hn::RebindToSigned<D> di;
  const auto subnormal = hn::Lt(x, hn::Set(d, std::numeric_limits<float>::min()));
  const V normal = hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, 0x1p23f)), x);
  const auto bits = hn::BitCast(di, normal);
  const auto exponent = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f400000)));  // the bits of 0.75
  f = hn::Sub(hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent))), hn::Set(d, 1.0f));
  return hn::Sub(hn::ConvertTo(d, exponent), hn::IfThenElseZero(subnormal, hn::Set(d, 23.0f)));
}

/// log of f32, within 0.9 ulp: e·ln 2 + f + LogCorrection(f), with the rounding of the first addition added back.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogF32(D d, V x) {
  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  V f;
  const V e = SplitLog(d, x, f);
  const V high = hn::Mul(e, hn::Set(d, ExpNumbers<float>::ln2_high));
  const V sum = hn::Add(high, f);
  const V rest = hn::Add(hn::MulAdd(e, hn::Set(d, ExpNumbers<float>::ln2_low), LogCorrection(d, f)), hn::Sub(f, hn::Sub(sum, high)));
  const V y = hn::IfThenElse(hn::Eq(x, infinity), x, hn::Add(sum, rest));
  const V outside = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity), hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), y, outside);
}

/// log(1 + x) of f32 for 0 ≤ x ≤ 1, within 0.9 ulp; a caller handles NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log1pOfUnitF32(D d, V x) {
  const V half = hn::Set(d, 0.5f);
  const auto upper = hn::Gt(x, half);
  const V f = hn::IfThenElse(upper, hn::Sub(hn::Mul(x, half), half), x);  // (1 + x) / 2 − 1 above
  const V high = hn::IfThenElseZero(upper, hn::Set(d, ExpNumbers<float>::ln2_high));
  const V low = hn::IfThenElseZero(upper, hn::Set(d, ExpNumbers<float>::ln2_low));
  const V sum = hn::Add(high, f);
  return hn::Add(sum, hn::Add(hn::Add(low, LogCorrection(d, f)), hn::Sub(f, hn::Sub(sum, high))));
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
