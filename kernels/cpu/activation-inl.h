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
#include <millrace/kernels/unary.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `f` of each lane, for functions that the C library computes.
template <class D, class F, class V = hn::Vec<D>>
HWY_INLINE V EachLane(D d, V x, F f) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f(lanes[i]);
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

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Softplus(D d, V x) {
  using T = hn::TFromD<D>;
  const V e = Exp(d, hn::Neg(hn::Abs(x)));
  const V tail = EachLane(d, e, [](T v) { return std::log1p(v); });
  return KeepNaN(d, x, hn::Add(hn::Max(x, hn::Zero(d)), tail));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Elu(D d, V x, V slope, V scale) {
  const V zero = hn::Zero(d);
  const V below = hn::Mul(slope, Expm1Negative(d, hn::Div(hn::Min(x, zero), scale)));
  return KeepNaN(d, x, hn::IfThenElse(hn::Ge(x, zero), x, below));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V HardSigmoid(D d, V x, V alpha, V beta) {
  const V y = hn::Add(hn::Mul(alpha, x), beta);
  return hn::Min(hn::Max(y, hn::Zero(d)), hn::Set(d, hn::TFromD<D>{1}));
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

/// The functions that a recurrent cell may use, and most others. Called, not inlined: it is large, and used several
/// times.
template <class D, class V = hn::Vec<D>>
HWY_NOINLINE V Activate(D d, Unary kind, V alpha, V beta, V x) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d);
  const V one = hn::Set(d, T{1});
  switch (kind) {
    case Unary::sigmoid: return Sigmoid(d, x);
    case Unary::tanh: return Tanh(d, x);
    case Unary::relu: return KeepNaN(d, x, hn::Max(x, zero));
    case Unary::leaky_relu: return hn::IfThenElse(hn::Lt(x, zero), hn::Mul(alpha, x), x);
    case Unary::thresholded_relu: return KeepNaN(d, x, hn::IfThenElse(hn::Gt(x, alpha), x, zero));
    case Unary::elu: return Elu(d, x, alpha, one);
    case Unary::selu: return hn::Mul(beta, Elu(d, x, alpha, one));
    case Unary::celu: return Elu(d, x, alpha, alpha);
    case Unary::hard_sigmoid: return KeepNaN(d, x, HardSigmoid(d, x, alpha, beta));
    case Unary::hard_swish:
      return KeepNaN(d, x, hn::Mul(x, HardSigmoid(d, x, hn::Set(d, static_cast<T>(1.0 / 6)), hn::Set(d, static_cast<T>(0.5)))));
    case Unary::softplus: return Softplus(d, x);
    case Unary::mish: return hn::Mul(x, Tanh(d, Softplus(d, x)));
    case Unary::softsign: return hn::Div(x, hn::Add(one, hn::Abs(x)));
    case Unary::affine: return hn::Add(hn::Mul(alpha, x), beta);
    case Unary::scaled_tanh: return hn::Mul(alpha, Tanh(d, hn::Mul(beta, x)));
    case Unary::swish: return hn::Mul(x, Sigmoid(d, hn::Mul(alpha, x)));
    case Unary::gelu_tanh: return GeluTanh(d, x);
    case Unary::gelu: {
      const V root = hn::Set(d, static_cast<T>(1.41421356237309504880));
      const V erf = Erf(d, hn::Div(x, root));
      return hn::Mul(hn::Mul(hn::Set(d, static_cast<T>(0.5)), x), hn::Add(one, erf));
    }
    case Unary::clip: return KeepNaN(d, x, hn::Min(hn::Max(x, alpha), beta));
    default: return x;
  }
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
