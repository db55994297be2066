// SPDX-License-Identifier: Apache-2.0
// exp, tanh and sigmoid of a vector: the one polynomial of every kernel, whatever its backend. Included once per
// instruction set.
#if defined(MILLRACE_KERNELS_CPU_ELEMENTARY_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_ELEMENTARY_INL_H
#undef MILLRACE_KERNELS_CPU_ELEMENTARY_INL_H
#else
#define MILLRACE_KERNELS_CPU_ELEMENTARY_INL_H
#endif

#include <limits>
#include <type_traits>

#include <hwy/highway.h>
#include <millrace/kernels/internal/exp_numbers.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using internal::ExpNumbers;

/// 2^n for n given as a whole number in a float, −bias < n ≤ bias + 1 (2^(bias + 1) is infinite); any number for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V PowerOfTwo(D d, V n) {
  using Numbers = ExpNumbers<hn::TFromD<D>>;
  const hn::RebindToSigned<D> di;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  n = hn::IfThenElseZero(hn::Eq(n, n), n);  // C++ has no integer for NaN, and these sets have no instruction
#endif
  const auto biased = hn::Add(hn::ConvertTo(di, n), hn::Set(di, Numbers::bias));
  return hn::BitCast(d, hn::ShiftLeft<Numbers::mantissa_bits>(biased));
}

/// y·2^n for a whole number n: one rounding, infinite results and those that become zero included.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE hn::Vec512<float> PowerOfTwo(hn::Full512<float>, hn::Vec512<float> n) {
  return hn::Vec512<float>{_mm512_scalef_ps(_mm512_set1_ps(1.0f), n.raw)};
}
HWY_INLINE hn::Vec512<double> PowerOfTwo(hn::Full512<double>, hn::Vec512<double> n) {
  return hn::Vec512<double>{_mm512_scalef_pd(_mm512_set1_pd(1.0), n.raw)};
}
HWY_INLINE hn::Vec512<float> Scaled(hn::Full512<float>, hn::Vec512<float> y, hn::Vec512<float> n) {
  return hn::Vec512<float>{_mm512_scalef_ps(y.raw, n.raw)};
}
HWY_INLINE hn::Vec512<double> Scaled(hn::Full512<double>, hn::Vec512<double> y, hn::Vec512<double> n) {
  return hn::Vec512<double>{_mm512_scalef_pd(y.raw, n.raw)};
}
#endif
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Scaled(D d, V y, V n) {
  // Two factors, since 2^n alone may be beyond the range that the product is within.
  const V half = hn::Floor(hn::Mul(n, hn::Set(d, static_cast<hn::TFromD<D>>(0.5))));
  return hn::Mul(hn::Mul(y, PowerOfTwo(d, half)), PowerOfTwo(d, hn::Sub(n, half)));
}

/// x = n·ln 2 + r; gives n, and e^r − 1 in `expm1_r`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SplitExp(D d, V x, V& expm1_r) {
  using T = hn::TFromD<D>;
  using Numbers = ExpNumbers<T>;
  constexpr int degree = static_cast<int>(sizeof(Numbers::q) / sizeof(T)) - 1;
  const V n = hn::Round(hn::Mul(x, hn::Set(d, static_cast<T>(1.44269504088896340736))));
  V r = hn::NegMulAdd(n, hn::Set(d, Numbers::ln2_high), x);
  r = hn::NegMulAdd(n, hn::Set(d, Numbers::ln2_low), r);
  V q = hn::Set(d, Numbers::q[degree]);
  for (int i = degree - 1; i >= 0; --i) q = hn::MulAdd(q, r, hn::Set(d, Numbers::q[i]));
  expm1_r = hn::MulAdd(hn::Mul(r, r), q, r);
  return n;
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V KeepNaN(D, V x, V y) {
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// The greater and the lesser of a bound and x; NaN where x is. The instructions of x86 give their second operand where one is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtLeast(D, V bound, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(bound, x);
#else
  return hn::IfThenElse(hn::Gt(bound, x), bound, x);
#endif
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtMost(D, V bound, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Min(bound, x);
#else
  return hn::IfThenElse(hn::Lt(bound, x), bound, x);
#endif
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  using T = hn::TFromD<D>;
  using Numbers = ExpNumbers<T>;
  const V clamped = AtMost(d, hn::Set(d, Numbers::greatest), AtLeast(d, hn::Set(d, Numbers::least), x));
  V expm1_r;
  const V n = SplitExp(d, clamped, expm1_r);
  return Scaled(d, hn::Add(expm1_r, hn::Set(d, T{1})), n);
}

/// exp for x ≤ 0 alone, and for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNegative(D d, V x) {
  using T = hn::TFromD<D>;
  V expm1_r;
  const V n = SplitExp(d, AtLeast(d, hn::Set(d, ExpNumbers<T>::least), x), expm1_r);
  return Scaled(d, hn::Add(expm1_r, hn::Set(d, T{1})), n);
}

/// e^x − 1 for 0 ≤ x below the overflow of e^x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Expm1Positive(D d, V x) {
  V expm1_r;
  const V n = SplitExp(d, x, expm1_r);
  const V scale = PowerOfTwo(d, n);
  return hn::MulAdd(scale, expm1_r, hn::Sub(scale, hn::Set(d, hn::TFromD<D>{1})));
}

/// e^x − 1 for x ≤ 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Expm1Negative(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr T minus_one = sizeof(T) == 4 ? T{-20} : T{-40};  // e^x − 1 is −1 below
  V expm1_r;
  const V n = SplitExp(d, AtLeast(d, hn::Set(d, minus_one), x), expm1_r);
  const V scale = PowerOfTwo(d, n);
  return hn::MulAdd(scale, expm1_r, hn::Sub(scale, hn::Set(d, T{1})));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  using T = hn::TFromD<D>;
  const V magnitude = AtMost(d, hn::Set(d, ExpNumbers<T>::tanh_is_one), hn::Abs(x));
  const V t = Expm1Positive(d, hn::Add(magnitude, magnitude));
  const V y = hn::Div(t, hn::Add(t, hn::Set(d, T{2})));
  return hn::CopySignToAbs(y, x);
}

/// c[0] + c[1]·x + …
template <class D, std::size_t N, class V = hn::Vec<D>>
HWY_INLINE V Polynomial(D d, const float (&c)[N], V x) {
  V sum = hn::Set(d, c[N - 1]);
  for (std::size_t i = N - 1; i-- > 0;) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
  return sum;
}

/// erf of f32, within 1.2 ulp: x + x·P(x²) up to 0.9, beyond 1 − e^−Q(|x|). P and Q are least in their greatest weighted error (Lawson's iteration).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ErfF32(D d, V x) {
  static constexpr float p[] = {0.12837917f, -0.37612635f, 0.11283715f, -0.026860509f, 0.005203859f, -0.00081756397f, 8.513105e-05f};
  static constexpr float q[] = {-0.0001663755f, 1.1294746f,    0.6334292f,      0.108188756f,
                                -0.025059909f,  0.0041483017f, -0.00042973555f, 2.0683932e-05f};
  const V magnitude = hn::Abs(x);
  const V near = hn::MulAdd(Polynomial(d, p, hn::Mul(x, x)), x, x);
  const V exponent = Polynomial(d, q, hn::Min(magnitude, hn::Set(d, 4.0f)));  // erf of 4 is 1
  const V far = hn::CopySignToAbs(hn::Sub(hn::Set(d, 1.0f), ExpNegative(d, hn::Neg(exponent))), x);
  return KeepNaN(d, x, hn::IfThenElse(hn::Le(magnitude, hn::Set(d, 0.9f)), near, far));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T{1});
  const V e = ExpNegative(d, hn::Neg(hn::Abs(x)));
  const V above = hn::IfThenElse(hn::Ge(x, hn::Zero(d)), one, e);
  return hn::Div(above, hn::Add(one, e));
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
