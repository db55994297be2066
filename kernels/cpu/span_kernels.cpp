// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/span_kernels.h>

#include <cstring>
#include <type_traits>

#include <millrace/kernels/cpu/float_functions.h>
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/span_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Vector `i` of a span, of which `count` elements are there.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadSpan(D d, const Span<T>& span, std::size_t i, std::size_t count) {
  if (span.repeats) return hn::Set(d, *span.first);
  if (count == hn::Lanes(d)) return hn::LoadU(d, span.first + i);
  HWY_ALIGN T lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, span.first + i, count * sizeof(T));
  return hn::Load(d, lanes);
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void StoreSpan(D d, hn::Vec<D> value, T* out, std::size_t count) {
  if (count == hn::Lanes(d)) return hn::StoreU(value, d, out);
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(value, d, lanes);
  std::memcpy(out, lanes, count * sizeof(T));
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
    if (count > 0) StoreSpan(d, f(d, LoadSpan(d, a, 0, count), LoadSpan(d, b, 0, count)), out, count);
    return;
  }
  const Elements<Own> from_a{a.first}, from_b{b.first};
  if (!a.repeats && !b.repeats) return SweepVectors(d, from_a, from_b, out, count, f);
  const Repeated<Own> all_a{hn::Set(d, *a.first)}, all_b{hn::Set(d, *b.first)};
  if (!b.repeats) return SweepVectors(d, all_a, from_b, out, count, f);
  if (!a.repeats) return SweepVectors(d, from_a, all_b, out, count, f);
  SweepVectors(d, all_a, all_b, out, count, f);
}

/// A NaN is not equal to anything; with AVX, hn::Ne says that it is.
template <class V>
HWY_INLINE auto NotEqual(V a, V b) {
  return hn::Not(hn::Eq(a, b));
}
template <class D, class M>
HWY_INLINE hn::Vec<D> Truth(D d, M mask) {
  return hn::IfThenElseZero(mask, hn::Set(d, hn::TFromD<D>{1}));
}
template <class D, class V>
HWY_INLINE auto IsTrue(D d, V v) {
  return NotEqual(v, hn::Zero(d));
}

#define MILLRACE_SPAN(expression)                                      \
  return Sweep(a, b, out, count, [](auto d, auto x, auto y) HWY_ATTR { \
    (void)d;                                                           \
    return expression;                                                 \
  })

template <class T>
void RunSpan(Binary kind, const Span<T>& a, const Span<T>& b, T* out, std::size_t count) {
  switch (kind) {
    case Binary::add: MILLRACE_SPAN(hn::Add(x, y));
    case Binary::sub: MILLRACE_SPAN(hn::Sub(x, y));
    case Binary::mul: MILLRACE_SPAN(hn::Mul(x, y));
    case Binary::div: MILLRACE_SPAN(hn::Div(x, y));
    case Binary::minimum: MILLRACE_SPAN(hn::IfThenElse(hn::Or(hn::Lt(x, y), NotEqual(x, x)), x, y));
    case Binary::maximum: MILLRACE_SPAN(hn::IfThenElse(hn::Or(hn::Gt(x, y), NotEqual(x, x)), x, y));
    case Binary::equal: MILLRACE_SPAN(Truth(d, hn::Eq(x, y)));
    case Binary::not_equal: MILLRACE_SPAN(Truth(d, NotEqual(x, y)));
    case Binary::less: MILLRACE_SPAN(Truth(d, hn::Lt(x, y)));
    case Binary::less_equal: MILLRACE_SPAN(Truth(d, hn::Le(x, y)));
    case Binary::greater: MILLRACE_SPAN(Truth(d, hn::Gt(x, y)));
    case Binary::greater_equal: MILLRACE_SPAN(Truth(d, hn::Ge(x, y)));
    case Binary::logical_and: MILLRACE_SPAN(Truth(d, hn::And(IsTrue(d, x), IsTrue(d, y))));
    case Binary::logical_or: MILLRACE_SPAN(Truth(d, hn::Or(IsTrue(d, x), IsTrue(d, y))));
    case Binary::logical_xor: MILLRACE_SPAN(Truth(d, hn::Xor(IsTrue(d, x), IsTrue(d, y))));
    default: break;
  }
}
#undef MILLRACE_SPAN

template <class T>
void RunWhere(const Span<T>& condition, const Span<T>& a, const Span<T>& b, T* out, std::size_t count) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t some = count - i < lanes ? count - i : lanes;
    const auto chosen = IsTrue(d, LoadSpan(d, condition, i, some));
    StoreSpan(d, hn::IfThenElse(chosen, LoadSpan(d, a, i, some), LoadSpan(d, b, i, some)), out + i, some);
  }
}

void RunSpanF32(Binary kind, const Span<float>& a, const Span<float>& b, float* out, std::size_t count) { RunSpan(kind, a, b, out, count); }
void RunSpanF64(Binary kind, const Span<double>& a, const Span<double>& b, double* out, std::size_t count) {
  RunSpan(kind, a, b, out, count);
}
void RunWhereF32(const Span<float>& c, const Span<float>& a, const Span<float>& b, float* out, std::size_t count) {
  RunWhere(c, a, b, out, count);
}
void RunWhereF64(const Span<double>& c, const Span<double>& a, const Span<double>& b, double* out, std::size_t count) {
  RunWhere(c, a, b, out, count);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunSpanF32);
HWY_EXPORT(RunSpanF64);
HWY_EXPORT(RunWhereF32);
HWY_EXPORT(RunWhereF64);

namespace {

template <class T>
void each(const Span<T>& a, const Span<T>& b, T* out, std::size_t count, T (*f)(T, T)) {
  for (std::size_t i = 0; i < count; ++i) out[i] = f(a.first[a.repeats ? 0 : i], b.first[b.repeats ? 0 : i]);
}

/// What the C library computes. False: `kind` is none of it.
template <class T>
bool run_elements(Binary kind, const Span<T>& a, const Span<T>& b, T* out, std::size_t count) {
  switch (kind) {
    case Binary::pow: each(a, b, out, count, &float_power<T>); return true;
    case Binary::mod: each(a, b, out, count, &float_mod<T>); return true;
    case Binary::fmod: each<T>(a, b, out, count, [](T x, T y) { return std::fmod(x, y); }); return true;
    case Binary::prelu: each(a, b, out, count, &float_prelu<T>); return true;
    default: return false;
  }
}

}  // namespace

void binary_span(Binary kind, Span<float> a, Span<float> b, float* out, std::size_t count) {
  if (run_elements(kind, a, b, out, count)) return;
  HWY_DYNAMIC_DISPATCH(RunSpanF32)(kind, a, b, out, count);
}
void binary_span(Binary kind, Span<double> a, Span<double> b, double* out, std::size_t count) {
  if (run_elements(kind, a, b, out, count)) return;
  HWY_DYNAMIC_DISPATCH(RunSpanF64)(kind, a, b, out, count);
}
void where_span(Span<float> condition, Span<float> a, Span<float> b, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(RunWhereF32)(condition, a, b, out, count);
}
void where_span(Span<double> condition, Span<double> a, Span<double> b, double* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(RunWhereF64)(condition, a, b, out, count);
}

}  // namespace millrace::cpu
#endif
