// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <millrace/kernels/internal/exp_numbers.h>
#include <millrace/kernels/unary.h>
#include <millrace/tensor/host_device.h>

/// Functions of one element: exp, tanh and sigmoid are the polynomials of cpu/elementary-inl.h, operation by operation.
namespace millrace::cuda {

MILLRACE_HD inline float mul_add(float a, float b, float c) { return ::fmaf(a, b, c); }
MILLRACE_HD inline double mul_add(double a, double b, double c) { return ::fma(a, b, c); }
MILLRACE_HD inline float rounded(float x) { return ::rintf(x); }
MILLRACE_HD inline double rounded(double x) { return ::rint(x); }

template <class T>
MILLRACE_HD T least_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
MILLRACE_HD T greatest_of(T a, T b) {
  return a > b ? a : b;
}

/// 2^n for a whole n, −bias < n ≤ bias + 1.
template <class T>
MILLRACE_HD T power_of_two(T n) {
  using Numbers = internal::ExpNumbers<T>;
  using Bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  using Raw = std::make_unsigned_t<Bits>;
  constexpr Bits bias = Numbers::bias;
  constexpr int shift = Numbers::mantissa_bits;
  return std::bit_cast<T>(static_cast<Raw>(static_cast<Raw>(static_cast<Bits>(n) + bias) << shift));
}

template <class T, std::size_t... I>
MILLRACE_HD T exp_polynomial(T r, std::index_sequence<I...>) {
  using Numbers = internal::ExpNumbers<T>;
  constexpr std::size_t degree = sizeof...(I);
  constexpr T top = Numbers::q[degree];
  T q = top;
  const auto step = [&](T factor) { q = mul_add(q, r, factor); };
  (
      [&] {
        constexpr T factor = Numbers::q[degree - 1 - I];
        step(factor);
      }(),
      ...);
  return q;
}

/// x = n·ln 2 + r; gives n, and e^r − 1 in `expm1_r`.
template <class T>
MILLRACE_HD T split_exp(T x, T& expm1_r) {
  using Numbers = internal::ExpNumbers<T>;
  constexpr T high = Numbers::ln2_high;
  constexpr T low = Numbers::ln2_low;
  const T n = rounded(x * static_cast<T>(1.44269504088896340736));
  T r = mul_add(-n, high, x);
  r = mul_add(-n, low, r);
  const T q = exp_polynomial(r, std::make_index_sequence<sizeof(Numbers::q) / sizeof(T) - 1>());
  expm1_r = mul_add(r * r, q, r);
  return n;
}

template <class T>
MILLRACE_HD T exp_of(T x) {
  using Numbers = internal::ExpNumbers<T>;
  constexpr T least = Numbers::least;
  constexpr T greatest = Numbers::greatest;
  if (x != x) return x;
  T expm1_r;
  const T n = split_exp(least_of(greatest_of(x, least), greatest), expm1_r);
  const T y = expm1_r + T{1};
  const T half = std::floor(n * static_cast<T>(0.5));
  return y * power_of_two(half) * power_of_two(n - half);
}

/// e^x − 1 for 0 ≤ x below the overflow of e^x.
template <class T>
MILLRACE_HD T expm1_positive(T x) {
  T expm1_r;
  const T scale = power_of_two(split_exp(x, expm1_r));
  return mul_add(scale, expm1_r, scale - T{1});
}

/// e^x − 1 for x ≤ 0.
template <class T>
MILLRACE_HD T expm1_negative(T x) {
  constexpr T minus_one = sizeof(T) == 4 ? T{-20} : T{-40};
  T expm1_r;
  const T scale = power_of_two(split_exp(greatest_of(x, minus_one), expm1_r));
  return mul_add(scale, expm1_r, scale - T{1});
}

template <class T>
MILLRACE_HD T tanh_of(T x) {
  constexpr T one = internal::ExpNumbers<T>::tanh_is_one;
  if (x != x) return x;
  const T magnitude = least_of(std::fabs(x), one);
  const T t = expm1_positive(magnitude + magnitude);
  return std::copysign(t / (t + T{2}), x);
}

template <class T>
MILLRACE_HD T sigmoid_of(T x) {
  if (x != x) return x;
  const T e = exp_of(-std::fabs(x));
  return (x >= T{0} ? T{1} : e) / (T{1} + e);
}

template <class T>
MILLRACE_HD T softplus_of(T x) {
  if (x != x) return x;
  return greatest_of(x, T{0}) + std::log1p(exp_of(-std::fabs(x)));
}

template <class T>
MILLRACE_HD T elu_of(T x, T slope, T scale) {
  if (x != x || x >= T{0}) return x;
  return slope * expm1_negative(x / scale);
}

template <class T>
MILLRACE_HD T hard_sigmoid_of(T x, T alpha, T beta) {
  return least_of(greatest_of(alpha * x + beta, T{0}), T{1});
}

template <class T>
MILLRACE_HD T gelu_tanh_of(T x) {
  const T cube = x * x * x;
  const T inner = static_cast<T>(0.79788456080286535588) * (x + static_cast<T>(0.044715) * cube);
  return static_cast<T>(0.5) * x * (T{1} + tanh_of(inner));
}

/// Every function of floats but is_nan and is_inf.
template <class T>
MILLRACE_HD T apply(Unary kind, T alpha, T beta, T x) {
  const bool is_nan = x != x;
  switch (kind) {
    case Unary::neg: return -x;
    case Unary::abs: return std::fabs(x);
    case Unary::sign: return is_nan || x == T{0} ? (is_nan ? x : T{0}) : std::copysign(T{1}, x);
    case Unary::square: return x * x;
    case Unary::sqrt: return std::sqrt(x);
    case Unary::reciprocal: return T{1} / x;
    case Unary::exp: return exp_of(x);
    case Unary::log: return std::log(x);
    case Unary::erf: return std::erf(x);
    case Unary::sin: return std::sin(x);
    case Unary::cos: return std::cos(x);
    case Unary::floor: return std::floor(x);
    case Unary::ceil: return std::ceil(x);
    case Unary::round: return rounded(x);
    case Unary::tanh: return tanh_of(x);
    case Unary::sigmoid: return sigmoid_of(x);
    case Unary::relu: return is_nan ? x : greatest_of(x, T{0});
    case Unary::leaky_relu: return x < T{0} ? alpha * x : x;
    case Unary::thresholded_relu: return is_nan || x > alpha ? x : T{0};
    case Unary::elu: return elu_of(x, alpha, T{1});
    case Unary::selu: return beta * elu_of(x, alpha, T{1});
    case Unary::celu: return elu_of(x, alpha, alpha);
    case Unary::gelu: return static_cast<T>(0.5) * x * (T{1} + std::erf(x / static_cast<T>(1.41421356237309504880)));
    case Unary::gelu_tanh: return gelu_tanh_of(x);
    case Unary::hard_sigmoid: return is_nan ? x : hard_sigmoid_of(x, alpha, beta);
    case Unary::hard_swish: return is_nan ? x : x * hard_sigmoid_of(x, static_cast<T>(1.0 / 6), static_cast<T>(0.5));
    case Unary::mish: return x * tanh_of(softplus_of(x));
    case Unary::softplus: return softplus_of(x);
    case Unary::softsign: return x / (T{1} + std::fabs(x));
    case Unary::affine: return alpha * x + beta;
    case Unary::scaled_tanh: return alpha * tanh_of(beta * x);
    case Unary::swish: return x * sigmoid_of(alpha * x);
    case Unary::clip: return is_nan ? x : least_of(greatest_of(x, alpha), beta);
    default: return x;
  }
}

}  // namespace millrace::cuda
