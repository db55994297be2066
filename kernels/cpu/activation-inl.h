// SPDX-License-Identifier: Apache-2.0
// Float functions of one vector by name, for the elementwise kernel and for the cells. Included once per instruction
// set.
#if defined(MILLRACE_KERNELS_CPU_ACTIVATION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_ACTIVATION_INL_H
#undef MILLRACE_KERNELS_CPU_ACTIVATION_INL_H
#else
#define MILLRACE_KERNELS_CPU_ACTIVATION_INL_H
#endif

#include <cmath>

#include <hwy/highway.h>
#include <millrace/kernels/cpu/elementary-inl.h>
#include <millrace/kernels/cpu/float_functions.h>
#include <millrace/kernels/cpu/logarithm-inl.h>
#include <millrace/kernels/unary.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `f` of each lane, for functions that the C library computes.
template <class D, class F, class V = hn::Vec<D>>
HWY_INLINE V EachLane(D d, V x, F f) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f(flushed(lanes[i]));
  return hn::Load(d, lanes);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Erf(D d, V x) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<T, float>)
    return ErfF32(d, x);
  else
    return EachLane(d, x, [](T v) { return std::erf(v); });
}

/// log(1 + x) for 0 ≤ x ≤ 1; a caller handles NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log1pOfUnit(D d, V x) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<T, float>)
    return Log1pOfUnitF32(d, x);
  else
    return EachLane(d, x, [](T v) { return std::log1p(v); });
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Softplus(D d, V x) {
  const V tail = Log1pOfUnit(d, ExpNegative(d, hn::Neg(hn::Abs(x))));
  return KeepNaN(d, x, hn::Add(hn::Max(x, hn::Zero(d)), tail));
}

/// x·tanh(log(1 + e)) with e = exp(x), as x·w / (w + 2) with w = e·(e + 2). Below −21 that is x·e, one rounding of x·e from normal numbers; above 21 it is x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Mish(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr T edge = sizeof(T) == 4 ? T{21} : T{40};
  const V one = hn::Set(d, T{1}), two = hn::Set(d, T{2});
  V expm1_r;
  const V n = SplitExp(d, hn::Min(hn::Max(x, hn::Set(d, ExpNumbers<T>::mish_is_zero)), hn::Set(d, edge)), expm1_r);
  const V power = hn::Add(expm1_r, one);
  const auto below = hn::Lt(x, hn::Set(d, -edge));
  const V e = Scaled(d, hn::IfThenElse(below, hn::Mul(hn::Max(x, hn::Set(d, ExpNumbers<T>::mish_is_zero)), power), power), n);
  const V w = hn::Mul(e, hn::Add(e, two));
  const V inside = hn::Mul(x, hn::Div(w, hn::Add(w, two)));
  const V y = hn::IfThenElse(below, e, hn::IfThenElse(hn::Gt(x, hn::Set(d, edge)), x, inside));
  return KeepNaN(d, x, y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Elu(D d, V x, V slope, V scale) {
  const V zero = hn::Zero(d);
  const V power = hn::Div(hn::Min(x, zero), scale);
  const bool grows = hn::GetLane(scale) < 0;  // the scale of celu may be any number
  const V below = hn::Mul(slope, grows ? hn::Sub(Exp(d, power), hn::Set(d, hn::TFromD<D>{1})) : Expm1Negative(d, power));
  return KeepNaN(d, x, hn::IfThenElse(hn::Ge(x, zero), x, below));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V HardSigmoid(D d, V x, V alpha, V beta) {
  const V y = hn::Add(hn::Mul(alpha, x), beta);  // NaN also where a slope of 0 meets infinity
  return KeepNaN(d, y, hn::Min(hn::Max(y, hn::Zero(d)), hn::Set(d, hn::TFromD<D>{1})));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V x) {
  using T = hn::TFromD<D>;
  const V cube = hn::Mul(hn::Mul(x, x), x);
  const V inner =
      hn::Mul(hn::Set(d, static_cast<T>(0.79788456080286535588)), hn::Add(x, hn::Mul(hn::Set(d, static_cast<T>(0.044715)), cube)));
  const V half = hn::Mul(hn::Set(d, static_cast<T>(0.5)), x);
  return hn::Mul(half, hn::Add(hn::Set(d, T{1}), Tanh(d, inner)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sign(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::CopySign(hn::Set(d, T{1}), x);
  return hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Zero(d), KeepNaN(d, x, one));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V HardSwish(D d, V x) {
  using T = hn::TFromD<D>;
  return hn::Mul(x, HardSigmoid(d, x, hn::Set(d, static_cast<T>(1.0 / 6)), hn::Set(d, static_cast<T>(0.5))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gelu(D d, V x) {
  using T = hn::TFromD<D>;
  const V erf = Erf(d, hn::Div(x, hn::Set(d, static_cast<T>(1.41421356237309504880))));
  return hn::Mul(hn::Mul(hn::Set(d, static_cast<T>(0.5)), x), hn::Add(hn::Set(d, T{1}), erf));
}

/// The functions that a recurrent cell may use, and most others. Kind: Unary, or a constant of it, whose other functions no compiler then has to optimize.
template <class D, class Kind, class V = hn::Vec<D>>
HWY_INLINE V ActivateInline(D d, Kind kind, V alpha, V beta, V x) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d);
  const V one = hn::Set(d, T{1});
  switch (static_cast<Unary>(kind)) {
    case Unary::sigmoid: return Sigmoid(d, x);
    case Unary::tanh: return Tanh(d, x);
    case Unary::relu: return KeepNaN(d, x, hn::Max(x, zero));
    case Unary::leaky_relu: return hn::IfThenElse(hn::Lt(x, zero), hn::Mul(alpha, x), x);
    case Unary::thresholded_relu: return KeepNaN(d, x, hn::IfThenElse(hn::Gt(x, alpha), x, zero));
    case Unary::elu: return Elu(d, x, alpha, one);
    case Unary::selu: return hn::Mul(beta, Elu(d, x, alpha, one));
    case Unary::celu: return Elu(d, x, alpha, alpha);
    case Unary::hard_sigmoid: return HardSigmoid(d, x, alpha, beta);
    case Unary::hard_swish: return HardSwish(d, x);
    case Unary::softplus: return Softplus(d, x);
    case Unary::mish: return Mish(d, x);
    case Unary::softsign: return hn::Div(x, hn::Add(one, hn::Abs(x)));
    case Unary::affine: return hn::Add(hn::Mul(alpha, x), beta);
    case Unary::scaled_tanh: return hn::Mul(alpha, Tanh(d, hn::Mul(beta, x)));
    case Unary::swish: return hn::Mul(x, Sigmoid(d, hn::Mul(alpha, x)));
    case Unary::gelu_tanh: return GeluTanh(d, x);
    case Unary::gelu: return Gelu(d, x);
    case Unary::clip: return KeepNaN(d, x, hn::Min(hn::Max(x, alpha), beta));
    default: return x;
  }
}

/// A function that is known at run time. Called, not inlined: it is large, and used several times.
template <class D, class V = hn::Vec<D>>
HWY_NOINLINE V Activate(D d, Unary kind, V alpha, V beta, V x) {
  return ActivateInline(d, kind, alpha, beta, x);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
