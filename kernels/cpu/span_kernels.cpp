// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/span_kernels.h>

#include <cstring>
#include <type_traits>

#include <millrace/kernels/cpu/float_functions.h>
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/span_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/binary-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>
#include <millrace/kernels/cpu/power-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Elements `i` and following of a span, `count` of them.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadSpan(D d, const Span<T>& span, std::size_t i, std::size_t count) {
  return span.repeats ? hn::Set(d, *span.first) : LoadSome(d, span.first + i, count);
}

/// A span as an operand: one vector of its elements at a time.
template <class D, class T = hn::TFromD<D>>
struct Elements {
  const T* first;
  HWY_INLINE hn::Vec<D> operator()(D d, std::size_t i) const { return hn::LoadU(d, first + i); }
};
template <class D>
struct Repeated {
  hn::Vec<D> value;
  HWY_INLINE hn::Vec<D> operator()(D, std::size_t) const { return value; }
};

/// The last vector overlaps the one before it. It is computed first, because `out` may be an input, and stored last.
template <class D, class T, class A, class B, class F>
HWY_INLINE void SweepVectors(D d, A a, B b, T* out, std::size_t count, F f) {
  const std::size_t lanes = hn::Lanes(d), rest = count - lanes;
  const auto last = f(d, a(d, rest), b(d, rest));
  for (std::size_t i = 0; i < rest; i += lanes) hn::StoreU(f(d, a(d, i), b(d, i)), d, out + i);
  hn::StoreU(last, d, out + rest);
}

template <class T, class F>
HWY_INLINE void Sweep(const Span<T>& a, const Span<T>& b, T* out, std::size_t count, F f) {
  const hn::ScalableTag<T> d;
  using D = decltype(d);
  using Own = std::remove_const_t<D>;
  if (count < hn::Lanes(d)) {
    if (count > 0) StoreSome(d, f(d, LoadSpan(d, a, 0, count), LoadSpan(d, b, 0, count)), out, count);
    return;
  }
  const Elements<Own> from_a{a.first}, from_b{b.first};
  if (!a.repeats && !b.repeats) return SweepVectors(d, from_a, from_b, out, count, f);
  const Repeated<Own> all_a{hn::Set(d, *a.first)}, all_b{hn::Set(d, *b.first)};
  if (!b.repeats) return SweepVectors(d, all_a, from_b, out, count, f);
  if (!a.repeats) return SweepVectors(d, from_a, all_b, out, count, f);
  SweepVectors(d, all_a, all_b, out, count, f);
}

template <class D, class M>
HWY_INLINE hn::Vec<D> Truth(D d, M mask) {
  return hn::IfThenElseZero(mask, hn::Set(d, hn::TFromD<D>{1}));
}
template <class D, class V>
HWY_INLINE auto IsTrue(D d, V v) {
  return NotEqual(v, hn::Zero(d));
}

/// `f` of two spans as a function of its own.
template <class T, class F>
SpanFunction<T> FunctionOf(F) {
  return [](const Span<T>& a, const Span<T>& b, T* out, std::size_t count) HWY_ATTR { Sweep(a, b, out, count, F()); };
}

#define MILLRACE_SPAN(expression)                            \
  return FunctionOf<T>([](auto d, auto x, auto y) HWY_ATTR { \
    (void)d;                                                 \
    return expression;                                       \
  })

/// Functions that go through f64; null for the rest.
SpanFunction<float> WideSpanOf(Binary kind) {
  using T [[maybe_unused]] = float;
  switch (kind) {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
    case Binary::pow:
      return [](const Span<T>& a, const Span<T>& b, T* out, std::size_t count) HWY_ATTR {
        if (count > 0 && b.repeats && *b.first == T{2})
          return Sweep(a, a, out, count, [](auto, auto x, auto y) HWY_ATTR { return hn::Mul(x, y); });
        Sweep(a, b, out, count, [](auto d, auto x, auto y) HWY_ATTR { return PowF32(d, x, y); });
      };
    case Binary::mod: MILLRACE_SPAN(ModF32(d, x, y));
    case Binary::fmod: MILLRACE_SPAN(FmodF32(d, x, y));
#endif
    default: return nullptr;
  }
}

/// Null for functions that the C library computes.
template <class T>
SpanFunction<T> SpanOf(Binary kind) {
  switch (kind) {
    case Binary::add: MILLRACE_SPAN(hn::Add(x, y));
    case Binary::sub: MILLRACE_SPAN(hn::Sub(x, y));
    case Binary::mul: MILLRACE_SPAN(hn::Mul(x, y));
    case Binary::div: MILLRACE_SPAN(hn::Div(x, y));
    case Binary::prelu: MILLRACE_SPAN(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(y, x), x));
    case Binary::sigmoid_gradient: MILLRACE_SPAN(hn::Mul(x, hn::Mul(y, hn::Sub(hn::Set(d, hn::TFromD<decltype(d)>{1}), y))));
    case Binary::tanh_gradient: MILLRACE_SPAN(hn::Mul(x, hn::Sub(hn::Set(d, hn::TFromD<decltype(d)>{1}), hn::Mul(y, y))));
    case Binary::minimum: MILLRACE_SPAN(Minimum(x, y));
    case Binary::maximum: MILLRACE_SPAN(Maximum(x, y));
    case Binary::equal: MILLRACE_SPAN(Truth(d, hn::Eq(x, y)));
    case Binary::not_equal: MILLRACE_SPAN(Truth(d, NotEqual(x, y)));
    case Binary::less: MILLRACE_SPAN(Truth(d, hn::Lt(x, y)));
    case Binary::less_equal: MILLRACE_SPAN(Truth(d, hn::Le(x, y)));
    case Binary::greater: MILLRACE_SPAN(Truth(d, hn::Gt(x, y)));
    case Binary::greater_equal: MILLRACE_SPAN(Truth(d, hn::Ge(x, y)));
    case Binary::logical_and: MILLRACE_SPAN(Truth(d, hn::And(IsTrue(d, x), IsTrue(d, y))));
    case Binary::logical_or: MILLRACE_SPAN(Truth(d, hn::Or(IsTrue(d, x), IsTrue(d, y))));
    case Binary::logical_xor: MILLRACE_SPAN(Truth(d, hn::Xor(IsTrue(d, x), IsTrue(d, y))));
    default: return nullptr;
  }
}
#undef MILLRACE_SPAN

template <class T>
void RunWhere(const Span<T>& condition, const Span<T>& a, const Span<T>& b, T* out, std::size_t count) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  if (condition.repeats) {
    const Span<T>& all = *condition.first != T{0} ? a : b;
    if (!all.repeats) {
      if (all.first != out) std::memmove(out, all.first, count * sizeof(T));
      return;
    }
  }
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t some = count - i < lanes ? count - i : lanes;
    const auto chosen = IsTrue(d, LoadSpan(d, condition, i, some));
    StoreSome(d, hn::IfThenElse(chosen, LoadSpan(d, a, i, some), LoadSpan(d, b, i, some)), out + i, some);
  }
}

SpanFunction<float> SpanOfF32(Binary kind) {
  const SpanFunction<float> wide = WideSpanOf(kind);
  return wide != nullptr ? wide : SpanOf<float>(kind);
}
SpanFunction<double> SpanOfF64(Binary kind) { return SpanOf<double>(kind); }
WhereFunction<float> WhereF32() { return &RunWhere<float>; }
WhereFunction<double> WhereF64() { return &RunWhere<double>; }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(SpanOfF32);
HWY_EXPORT(SpanOfF64);
HWY_EXPORT(WhereF32);
HWY_EXPORT(WhereF64);

namespace {

template <class T, class F>
SpanFunction<T> each(F) {
  return [](const Span<T>& a, const Span<T>& b, T* out, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = F()(a.first[a.repeats ? 0 : i], b.first[b.repeats ? 0 : i]);
  };
}

/// A function of the C library.
template <class T>
SpanFunction<T> element_function(Binary kind) {
  switch (kind) {
    case Binary::pow: return each<T>([](T x, T y) { return float_power(x, y); });
    case Binary::mod: return each<T>([](T x, T y) { return float_mod(x, y); });
    case Binary::fmod: return each<T>([](T x, T y) { return float_fmod(x, y); });
    default: return nullptr;
  }
}

}  // namespace

template <>
SpanFunction<float> span_function<float>(Binary kind) {
  const SpanFunction<float> function = HWY_DYNAMIC_DISPATCH(SpanOfF32)(kind);
  return function != nullptr ? function : element_function<float>(kind);
}
template <>
SpanFunction<double> span_function<double>(Binary kind) {
  const SpanFunction<double> function = HWY_DYNAMIC_DISPATCH(SpanOfF64)(kind);
  return function != nullptr ? function : element_function<double>(kind);
}
template <>
WhereFunction<float> where_function<float>() {
  return HWY_DYNAMIC_DISPATCH(WhereF32)();
}
template <>
WhereFunction<double> where_function<double>() {
  return HWY_DYNAMIC_DISPATCH(WhereF64)();
}

}  // namespace millrace::cpu
#endif
