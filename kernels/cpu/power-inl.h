// SPDX-License-Identifier: Apache-2.0
// Powers and remainders of vectors of f32, by way of f64. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_POWER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_POWER_INL_H
#undef MILLRACE_KERNELS_CPU_POWER_INL_H
#else
#define MILLRACE_KERNELS_CPU_POWER_INL_H
#endif

#include <cmath>
#include <limits>

#include <hwy/highway.h>
#include <millrace/kernels/cpu/float_functions.h>
#include <millrace/kernels/cpu/logarithm-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

/// c[0] + c[1]·x + … of f64.
template <class D, std::size_t N, class V = hn::Vec<D>>
HWY_INLINE V PolynomialF64(D d, const double (&c)[N], V x) {
  V sum = hn::Set(d, c[N - 1]);
  for (std::size_t i = N - 1; i-- > 0;) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
  return sum;
}

/// 2^(y·log2 x) for half a vector: `f` and `e` as SplitLog gives them. log2 x is e + s·P(s²) with s = f / (2 + f), to 2^-44; 2^r has a relative error of 2^-34.
template <class D, class DF, class V = hn::Vec<DF>>
HWY_INLINE V PowerOfHalf(D d, DF df, V f, V e, V y) {
  static constexpr double p[] = {0x1.71547652b824ep+1, 0x1.ec709dc54100bp-1, 0x1.2776c28db78d3p-1,
                                 0x1.a61a336ac0890p-2, 0x1.47948dbbcf3dcp-2, 0x1.21bcabacac547p-2};
  static constexpr double q[] = {1,
                                 0x1.62e42ff1162a0p-1,
                                 0x1.ebfbe0a4be7acp-3,
                                 0x1.c6b08aaf2c325p-5,
                                 0x1.3b29dc40daeafp-7,
                                 0x1.5d8a708b026adp-10,
                                 0x1.446a1fd7c4bf5p-13,
                                 0x1.fe1780ca4acdfp-17};
  const auto wide = hn::PromoteTo(d, f);
  const auto s = hn::Div(wide, hn::Add(wide, hn::Set(d, 2.0)));
  const auto logarithm = hn::MulAdd(s, PolynomialF64(d, p, hn::Mul(s, s)), hn::PromoteTo(d, e));
  const auto product = hn::Mul(hn::PromoteTo(d, y), logarithm);
  // 2^-160 and 2^140 are zero and infinity of f32.
  const auto t = hn::Min(hn::Max(product, hn::Set(d, -160.0)), hn::Set(d, 140.0));
  const auto n = hn::Round(t);
  return hn::DemoteTo(df, hn::Mul(PolynomialF64(d, q, hn::Sub(t, n)), PowerOfTwo(d, n)));
}

/// x^y of f32 as IEEE 754 defines its special cases, within 0.6 ulp; x·x where y is 2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V PowF32(D d, V x, V y) {
  const hn::Half<D> half;
  const hn::RepartitionToWide<D> wide;
  const V zero = hn::Zero(d), one = hn::Set(d, 1.0f), infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const V nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
  const V magnitude = hn::Abs(x);
  V f, e;
  e = SplitLog(d, magnitude, f);
  const auto no_base = hn::Eq(x, zero), no_bound = hn::Eq(magnitude, infinity);
  // log2 of 0 and of infinity; their f is not used.
  e = hn::IfThenElse(no_base, hn::Neg(infinity), hn::IfThenElse(no_bound, infinity, e));
  f = hn::IfThenElse(hn::Or(no_base, no_bound), zero, f);
  const V lower = hn::Combine(d, PowerOfHalf(wide, half, hn::UpperHalf(half, f), hn::UpperHalf(half, e), hn::UpperHalf(half, y)),
                              PowerOfHalf(wide, half, hn::LowerHalf(half, f), hn::LowerHalf(half, e), hn::LowerHalf(half, y)));
  // A negative base: the sign of an odd power, and no number for a power that is no whole number.
  const V halved = hn::Mul(y, hn::Set(d, 0.5f));
  const auto whole = hn::Eq(hn::Floor(y), y);
  const auto even = hn::Eq(hn::Floor(halved), halved);
  const V sign = hn::And(hn::IfThenElseZero(hn::AndNot(even, whole), x), hn::SignBit(d));
  V power = hn::Or(lower, sign);
  const auto negative = hn::And(hn::Lt(x, zero), hn::Not(no_bound));
  power = hn::IfThenElse(hn::AndNot(whole, negative), nan, power);
  // 1^y, x^0, (−1)^±∞, and NaN elsewhere.
  power = hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::IsNaN(y)), nan, power);
  const auto unit = hn::Or(hn::Or(hn::Eq(x, one), hn::Eq(y, zero)), hn::And(hn::Eq(magnitude, one), hn::Eq(hn::Abs(y), infinity)));
  power = hn::IfThenElse(unit, one, power);
  return hn::IfThenElse(hn::Eq(y, hn::Set(d, 2.0f)), hn::Mul(x, x), power);
}

/// The remainder of half a vector in f64, exact where |x / y| < 2^29: the quotient is off by one at most, and its product has 53 bits.
template <class D, class DF, class V = hn::Vec<DF>>
HWY_INLINE V RemainderOfHalf(D d, DF df, V x, V y, bool& far) {
  const auto over = hn::PromoteTo(d, x), under = hn::PromoteTo(d, y);
  const auto quotient = hn::Trunc(hn::Div(over, under));
  const auto near =
      hn::And(hn::Lt(hn::Abs(quotient), hn::Set(d, 0x1p29)), hn::Lt(hn::Abs(under), hn::Set(d, std::numeric_limits<double>::infinity())));
  far = far || !hn::AllTrue(d, near);
  auto rest = hn::CopySignToAbs(hn::Abs(hn::NegMulAdd(quotient, under, over)), over);
  const auto turned = hn::Lt(hn::Mul(hn::NegMulAdd(quotient, under, over), over), hn::Zero(d));
  rest = hn::IfThenElse(turned, hn::Sub(hn::CopySignToAbs(hn::Abs(under), over), rest), rest);
  return hn::DemoteTo(df, rest);
}

/// fmod of f32, exact.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V FmodF32(D d, V x, V y) {
  const hn::Half<D> half;
  const hn::RepartitionToWide<D> wide;
  bool far = false;
  const V rest = hn::Combine(d, RemainderOfHalf(wide, half, hn::UpperHalf(half, x), hn::UpperHalf(half, y), far),
                             RemainderOfHalf(wide, half, hn::LowerHalf(half, x), hn::LowerHalf(half, y), far));
  if (HWY_LIKELY(!far)) return rest;
  HWY_ALIGN float over[hn::MaxLanes(d)], under[hn::MaxLanes(d)];
  hn::Store(x, d, over);
  hn::Store(y, d, under);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) over[i] = float_fmod(over[i], under[i]);
  return hn::Load(d, over);
}

/// The remainder with the sign of y.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ModF32(D d, V x, V y) {
  const V zero = hn::Zero(d), rest = FmodF32(d, x, y);
  const auto apart = hn::Xor(hn::Lt(rest, zero), hn::Lt(y, zero));
  return hn::IfThenElse(hn::AndNot(hn::Eq(rest, zero), apart), hn::Add(rest, y), rest);
}

#endif

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
