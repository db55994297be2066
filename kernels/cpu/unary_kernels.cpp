// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/unary_kernels.h>

#include <cmath>
#include <type_traits>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/unary_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>
#include <millrace/kernels/cpu/circular-inl.h>
#include <millrace/kernels/cpu/logarithm-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// Applies `f` to whole vectors, the last of which may have zeros behind the end, so that every element meets the same instructions.
template <class T, class F>
HWY_INLINE void Sweep(const T* x, T* out, std::size_t count, F f) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(d, hn::LoadU(d, x + i)), d, out + i);
  if (i < count) StoreSome(d, f(d, LoadSome(d, x + i, count - i)), out + i, count - i);
}

/// `f` of a vector as a function of its own.
template <class T, class F>
UnaryFunction<T> FunctionOf(F) {
  return [](Unary, const UnaryParams&, const T* x, T* out, std::size_t count) HWY_ATTR { Sweep(x, out, count, F()); };
}
/// Runs the function `Kind` of Activate.
template <class T, Unary Kind>
void RunActivation(Unary, const UnaryParams& params, const T* x, T* out, std::size_t count) {
  const T alpha = static_cast<T>(params.alpha);
  const T beta = static_cast<T>(params.beta);
  constexpr std::integral_constant<Unary, Kind> chosen;
  Sweep(x, out, count, [=](auto d, auto v) HWY_ATTR { return ActivateInline(d, chosen, hn::Set(d, alpha), hn::Set(d, beta), v); });
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log(D d, V x) {
  if constexpr (std::is_same_v<hn::TFromD<D>, float>)
    return LogF32(d, x);
  else
    return EachLane(d, x, [](double v) { return std::log(v); });
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sin(D d, V x) {
  if constexpr (std::is_same_v<hn::TFromD<D>, float>)
    return CircularF32<0>(d, x);
  else
    return EachLane(d, x, [](double v) { return std::sin(v); });
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Cos(D d, V x) {
  if constexpr (std::is_same_v<hn::TFromD<D>, float>)
    return CircularF32<1>(d, x);
  else
    return EachLane(d, x, [](double v) { return std::cos(v); });
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Atan(D d, V x) {
  if constexpr (std::is_same_v<hn::TFromD<D>, float>)
    return AtanF32(d, x);
  else
    return EachLane(d, x, [](double v) { return std::atan(v); });
}

/// A rounded number has the sign of the number, zeros too. Highway's own code loses it where no instruction rounds.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V WithSign(D, V rounded, V x) {
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE2
  return hn::CopySign(rounded, x);
#else
  (void)x;
  return rounded;
#endif
}

#define MILLRACE_VECTOR(expression)                  \
  return FunctionOf<T>([](auto d, auto v) HWY_ATTR { \
    (void)d;                                         \
    return expression;                               \
  })
#define MILLRACE_ACTIVATION(kind) \
  case Unary::kind: return &RunActivation<T, Unary::kind>

template <class T>
UnaryFunction<T> UnaryOf(Unary kind) {
  switch (kind) {
    case Unary::identity: MILLRACE_VECTOR(v);
    case Unary::neg: MILLRACE_VECTOR(hn::Neg(v));
    case Unary::abs: MILLRACE_VECTOR(hn::Abs(v));
    case Unary::sign: MILLRACE_VECTOR(Sign(d, v));
    case Unary::square: MILLRACE_VECTOR(hn::Mul(v, v));
    case Unary::sqrt: MILLRACE_VECTOR(hn::Sqrt(v));
    case Unary::reciprocal: MILLRACE_VECTOR(hn::Div(hn::Set(d, T{1}), v));
    case Unary::exp: MILLRACE_VECTOR(Exp(d, v));
    case Unary::tanh: MILLRACE_VECTOR(Tanh(d, v));
    case Unary::sigmoid: MILLRACE_VECTOR(Sigmoid(d, v));
    case Unary::relu: MILLRACE_VECTOR(KeepNaN(d, v, hn::Max(v, hn::Zero(d))));
    case Unary::floor: MILLRACE_VECTOR(WithSign(d, hn::Floor(v), v));
    case Unary::ceil: MILLRACE_VECTOR(WithSign(d, hn::Ceil(v), v));
    case Unary::round: MILLRACE_VECTOR(WithSign(d, hn::Round(v), v));
    case Unary::log: MILLRACE_VECTOR(Log(d, v));
    case Unary::erf: MILLRACE_VECTOR(Erf(d, v));
    case Unary::sin: MILLRACE_VECTOR(Sin(d, v));
    case Unary::cos: MILLRACE_VECTOR(Cos(d, v));
    case Unary::atan:
      MILLRACE_VECTOR(Atan(d, v));
      MILLRACE_ACTIVATION(leaky_relu);
      MILLRACE_ACTIVATION(thresholded_relu);
      MILLRACE_ACTIVATION(elu);
      MILLRACE_ACTIVATION(selu);
      MILLRACE_ACTIVATION(celu);
      MILLRACE_ACTIVATION(gelu);
      MILLRACE_ACTIVATION(gelu_tanh);
      MILLRACE_ACTIVATION(hard_sigmoid);
      MILLRACE_ACTIVATION(hard_swish);
      MILLRACE_ACTIVATION(mish);
      MILLRACE_ACTIVATION(softplus);
      MILLRACE_ACTIVATION(softsign);
      MILLRACE_ACTIVATION(affine);
      MILLRACE_ACTIVATION(scaled_tanh);
      MILLRACE_ACTIVATION(swish);
      MILLRACE_ACTIVATION(clip);
    default: return nullptr;
  }
}
#undef MILLRACE_VECTOR
#undef MILLRACE_ACTIVATION

UnaryFunction<float> UnaryOfF32(Unary kind) { return UnaryOf<float>(kind); }
UnaryFunction<double> UnaryOfF64(Unary kind) { return UnaryOf<double>(kind); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(UnaryOfF32);
HWY_EXPORT(UnaryOfF64);

template <>
UnaryFunction<float> unary_function<float>(Unary kind) {
  return HWY_DYNAMIC_DISPATCH(UnaryOfF32)(kind);
}
template <>
UnaryFunction<double> unary_function<double>(Unary kind) {
  return HWY_DYNAMIC_DISPATCH(UnaryOfF64)(kind);
}

void unary_run(Unary kind, const UnaryParams& params, const float* x, float* out, std::size_t count) {
  unary_function<float>(kind)(kind, params, x, out, count);
}
void unary_run(Unary kind, const UnaryParams& params, const double* x, double* out, std::size_t count) {
  unary_function<double>(kind)(kind, params, x, out, count);
}

}  // namespace millrace::cpu
#endif
