// SPDX-License-Identifier: Apache-2.0
// Sine, cosine and arctangent of vectors of f32. Included once per instruction set.
#if defined(MILLRACE_KERNELS_CPU_CIRCULAR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_CIRCULAR_INL_H
#undef MILLRACE_KERNELS_CPU_CIRCULAR_INL_H
#else
#define MILLRACE_KERNELS_CPU_CIRCULAR_INL_H
#endif

#include <cmath>

#include <hwy/highway.h>
#include <millrace/kernels/cpu/elementary-inl.h>
#include <millrace/kernels/cpu/float_functions.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `y` with the lanes of `mask` replaced by the C library's sine (`Turns` 0) or cosine (`Turns` 1) of `x`.
template <int Turns, class D, class M, class V = hn::Vec<D>>
HWY_NOINLINE V WithLibrary(D d, V x, V y, M mask) {
  HWY_ALIGN float from[hn::MaxLanes(d)], to[hn::MaxLanes(d)], chosen[hn::MaxLanes(d)];
  hn::Store(x, d, from);
  hn::Store(y, d, to);
  hn::Store(hn::IfThenElseZero(mask, hn::Set(d, 1.0f)), d, chosen);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i)
    if (const float number = flushed(from[i]); chosen[i] != 0) to[i] = Turns == 0 ? std::sin(number) : std::cos(number);
  return hn::Load(d, to);
}

/// sin of f32 (`Turns` 0) or cos (`Turns` 1), within 1 ulp. |x| = n·π/2 + r + low with |r| ≤ π/4, where π/2 has 72 bits; then a polynomial of r, whose
/// greatest relative error is 2^-27.9 (Lawson's iteration). The C library computes lanes beyond 10^5, infinities and NaN, and all lanes on an instruction
/// set without a fused multiply-add: the remainder needs products that do not round.
template <int Turns, class D, class V = hn::Vec<D>>
HWY_INLINE V CircularF32(D d, V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSE4
  return WithLibrary<Turns>(d, x, x, hn::Eq(hn::Zero(d), hn::Zero(d)));
#else
  static constexpr float p[] = {-0.16666654f, 0.008332149f, -0.0001951362f};
  static constexpr float q[] = {0.041666646f, -0.00138873f, 2.4431258e-05f};
  const hn::RebindToSigned<D> di;
  const V one = hn::Set(d, 1.0f), middle = hn::Set(d, -0x1.777a5cp-25f);
  const V magnitude = hn::Abs(x);
  const V n = hn::Round(hn::Mul(magnitude, hn::Set(d, 0.63661977f)));
  const V first = hn::NegMulAdd(n, hn::Set(d, 0x1.921fb6p+0f), magnitude);  // exact
  const V second = hn::Mul(n, middle), second_rest = hn::MulSub(n, middle, second);
  const V r = hn::Sub(first, second);
  const V back = hn::Sub(r, first);  // with the sum of both errors below: r + low = first − n·middle
  const V rounding = hn::Sub(hn::Sub(first, hn::Sub(r, back)), hn::Add(second, back));
  const V low = hn::Sub(hn::NegMulAdd(n, hn::Set(d, -0x1.ee59dap-50f), rounding), second_rest);
  const V square = hn::Mul(r, r);
  const V sine = hn::Add(r, hn::MulAdd(hn::Mul(r, square), Polynomial(d, p, square), low));
  const V half = hn::Mul(square, hn::Set(d, 0.5f));
  const V near = hn::Sub(one, half);
  const V rest = hn::MulAdd(hn::Mul(square, square), Polynomial(d, q, square), hn::NegMulAdd(r, low, hn::Sub(hn::Sub(one, near), half)));
  const V cosine = hn::Add(near, rest);
  const auto quadrant = hn::Add(hn::ConvertTo(di, n), hn::Set(di, Turns));
  const auto odd = hn::MaskFromVec(hn::BitCast(d, hn::Neg(hn::And(quadrant, hn::Set(di, 1)))));
  const V flips = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2))));
  V y = hn::Xor(hn::IfThenElse(odd, cosine, sine), flips);
  if constexpr (Turns == 0) y = hn::Xor(y, hn::And(x, hn::SignBit(d)));
  const auto far = hn::Not(hn::Le(magnitude, hn::Set(d, 1e5f)));
  if (HWY_UNLIKELY(!hn::AllFalse(d, far))) return WithLibrary<Turns>(d, x, y, far);
  return y;
#endif
}

/// atan of f32, within 1.9 ulp: of t = |x|, (|x| − 1) / (|x| + 1) or −1 / |x|, which is at most tan(π/8), plus 0, π/4 or π/2; a polynomial of t² whose
/// greatest relative error is 2^-30 (Lawson's iteration). No fused multiply-add: the same bits on every instruction set.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtanF32(D d, V x) {
  static constexpr float p[] = {-0.33333316f, 0.1999849f, -0.14243849f, 0.10596002f, -0.060834534f};
  const V one = hn::Set(d, 1.0f), magnitude = hn::Abs(x);
  const auto middle = hn::Gt(magnitude, hn::Set(d, 0.41421356f)), far = hn::Gt(magnitude, hn::Set(d, 2.4142135f));
  const V above = hn::IfThenElse(far, hn::Set(d, -1.0f), hn::IfThenElse(middle, hn::Sub(magnitude, one), magnitude));
  const V below = hn::IfThenElse(far, magnitude, hn::IfThenElse(middle, hn::Add(magnitude, one), one));
  const V t = hn::Div(above, below), square = hn::Mul(t, t);
  V sum = hn::Set(d, p[4]);
  for (int i = 3; i >= 0; --i) sum = hn::Add(hn::Mul(sum, square), hn::Set(d, p[i]));
  const V rest = hn::Mul(hn::Mul(t, square), sum);
  const V high = hn::IfThenElseZero(middle, hn::IfThenElse(far, hn::Set(d, 0x1.921fb6p+0f), hn::Set(d, 0x1.921fb6p-1f)));
  const V low = hn::IfThenElseZero(middle, hn::IfThenElse(far, hn::Set(d, -0x1.777a5cp-25f), hn::Set(d, -0x1.777a5cp-26f)));
  const V y = hn::Add(high, hn::Add(t, hn::Add(rest, low)));
  return hn::CopySign(y, x);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
