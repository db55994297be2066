// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/unary_kernels.h>

#include <cmath>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/unary_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>
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

template <class T, class F>
HWY_INLINE void SweepLanes(const T* x, T* out, std::size_t count, F f) {
  for (std::size_t i = 0; i < count; ++i) out[i] = f(x[i]);
}

/// `f` of a vector as a function of its own.
template <class T, class F>
UnaryFunction<T> FunctionOf(F) {
  return [](Unary, const UnaryParams&, const T* x, T* out, std::size_t count) HWY_ATTR { Sweep(x, out, count, F()); };
}
template <class T, class F>
UnaryFunction<T> LanesOf(F) {
  return [](Unary, const UnaryParams&, const T* x, T* out, std::size_t count) { SweepLanes(x, out, count, F()); };
}

/// Functions with parameters, and functions too large to be inlined.
template <class T>
void RunActivation(Unary kind, const UnaryParams& params, const T* x, T* out, std::size_t count) {
  const T alpha = static_cast<T>(params.alpha);
  const T beta = static_cast<T>(params.beta);
  Sweep(x, out, count, [=](auto d, auto v) HWY_ATTR { return Activate(d, kind, hn::Set(d, alpha), hn::Set(d, beta), v); });
}

#define MILLRACE_VECTOR(expression)                  \
  return FunctionOf<T>([](auto d, auto v) HWY_ATTR { \
    (void)d;                                         \
    return expression;                               \
  })
#define MILLRACE_LANE(expression) return LanesOf<T>([](T v) { return expression; })

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
    case Unary::floor: MILLRACE_VECTOR(hn::Floor(v));
    case Unary::ceil: MILLRACE_VECTOR(hn::Ceil(v));
    case Unary::round: MILLRACE_VECTOR(hn::Round(v));
    case Unary::log: MILLRACE_LANE(std::log(v));
    case Unary::erf: MILLRACE_VECTOR(Erf(d, v));
    case Unary::sin: MILLRACE_LANE(std::sin(v));
    case Unary::cos: MILLRACE_LANE(std::cos(v));
    default: return &RunActivation<T>;
  }
}
#undef MILLRACE_VECTOR
#undef MILLRACE_LANE

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
