// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/unary_kernels.h>

#include <cmath>
#include <cstring>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/unary_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// Applies `f` to whole vectors; the rest goes through a padded one, so that every element meets the same instructions.
template <class T, class F>
HWY_INLINE void Sweep(const T* x, T* out, std::size_t count, F f) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(d, hn::LoadU(d, x + i)), d, out + i);
  if (i == count) return;
  HWY_ALIGN T rest[hn::MaxLanes(d)] = {};
  std::memcpy(rest, x + i, (count - i) * sizeof(T));
  hn::Store(f(d, hn::Load(d, rest)), d, rest);
  std::memcpy(out + i, rest, (count - i) * sizeof(T));
}

template <class T, class F>
HWY_INLINE void SweepLanes(const T* x, T* out, std::size_t count, F f) {
  for (std::size_t i = 0; i < count; ++i) out[i] = f(x[i]);
}

#define MILLRACE_VECTOR(expression)                         \
  return Sweep(x, out, count, [](auto d, auto v) HWY_ATTR { \
    (void)d;                                                \
    return expression;                                      \
  })
#define MILLRACE_LANE(expression) return SweepLanes(x, out, count, [](T v) { return expression; })

template <class T>
void RunUnary(Unary kind, const UnaryParams& params, const T* x, T* out, std::size_t count) {
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
    case Unary::floor: MILLRACE_LANE(std::floor(v));
    case Unary::ceil: MILLRACE_LANE(std::ceil(v));
    case Unary::round: MILLRACE_LANE(std::nearbyint(v));
    case Unary::log: MILLRACE_LANE(std::log(v));
    case Unary::erf: MILLRACE_LANE(std::erf(v));
    case Unary::sin: MILLRACE_LANE(std::sin(v));
    case Unary::cos: MILLRACE_LANE(std::cos(v));
    default: break;
  }
  const T alpha = static_cast<T>(params.alpha);
  const T beta = static_cast<T>(params.beta);
  Sweep(x, out, count, [=](auto d, auto v) HWY_ATTR { return Activate(d, kind, hn::Set(d, alpha), hn::Set(d, beta), v); });
}

void RunUnaryF32(Unary kind, const UnaryParams& params, const float* x, float* out, std::size_t count) {
  RunUnary(kind, params, x, out, count);
}
void RunUnaryF64(Unary kind, const UnaryParams& params, const double* x, double* out, std::size_t count) {
  RunUnary(kind, params, x, out, count);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunUnaryF32);
HWY_EXPORT(RunUnaryF64);

void unary_run(Unary kind, const UnaryParams& params, const float* x, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(RunUnaryF32)(kind, params, x, out, count);
}
void unary_run(Unary kind, const UnaryParams& params, const double* x, double* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(RunUnaryF64)(kind, params, x, out, count);
}

}  // namespace millrace::cpu
#endif
