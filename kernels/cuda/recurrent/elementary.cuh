// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/internal/exp_numbers.h>
#include <millrace/kernels/cuda/recurrent/device.cuh>

#if !defined(__CUDACC_RTC__)
#include <cmath>
#endif

/// Functions of one element. exp, tanh and sigmoid are the polynomials of cpu/elementary-inl.h, operation by operation.
namespace millrace::cuda {

MILLRACE_HD inline float mul_add(float a, float b, float c) { return ::fmaf(a, b, c); }
MILLRACE_HD inline double mul_add(double a, double b, double c) { return ::fma(a, b, c); }
MILLRACE_HD inline float rounded(float x) { return ::rintf(x); }
MILLRACE_HD inline double rounded(double x) { return ::rint(x); }
MILLRACE_HD inline float magnitude(float x) { return ::fabsf(x); }
MILLRACE_HD inline double magnitude(double x) { return ::fabs(x); }
MILLRACE_HD inline float signed_as(float x, float sign) { return ::copysignf(x, sign); }
MILLRACE_HD inline double signed_as(double x, double sign) { return ::copysign(x, sign); }
MILLRACE_HD inline float floor_of(float x) { return ::floorf(x); }
MILLRACE_HD inline double floor_of(double x) { return ::floor(x); }
MILLRACE_HD inline float ceil_of(float x) { return ::ceilf(x); }
MILLRACE_HD inline double ceil_of(double x) { return ::ceil(x); }
MILLRACE_HD inline float root_of(float x) { return ::sqrtf(x); }
MILLRACE_HD inline double root_of(double x) { return ::sqrt(x); }
MILLRACE_HD inline float log_of(float x) { return ::logf(x); }
MILLRACE_HD inline double log_of(double x) { return ::log(x); }
MILLRACE_HD inline float log1p_of(float x) { return ::log1pf(x); }
MILLRACE_HD inline double log1p_of(double x) { return ::log1p(x); }
MILLRACE_HD inline float erf_of(float x) { return ::erff(x); }
MILLRACE_HD inline double erf_of(double x) { return ::erf(x); }
MILLRACE_HD inline float sin_of(float x) { return ::sinf(x); }
MILLRACE_HD inline double sin_of(double x) { return ::sin(x); }
MILLRACE_HD inline float cos_of(float x) { return ::cosf(x); }
MILLRACE_HD inline double cos_of(double x) { return ::cos(x); }
MILLRACE_HD inline float atan_of(float x) { return ::atanf(x); }
MILLRACE_HD inline double atan_of(double x) { return ::atan(x); }

/// a / b by an approximation `r` of 1 / b of one unit in the last place: two steps of Newton's method, the last remainder exact.
MILLRACE_HD inline float refined_quotient(float a, float b, float r) {
  r = mul_add(r, mul_add(-b, r, 1.0f), r);
  float q = a * r;
  q = mul_add(mul_add(-b, q, a), r, q);
  return mul_add(mul_add(-b, q, a), r, q);
}

template <class T>
MILLRACE_HD T least_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
MILLRACE_HD T greatest_of(T a, T b) {
  return a > b ? a : b;
}

/// 2^n for a whole n, −bias < n ≤ bias + 1.
MILLRACE_HD inline float power_of_two(float n) {
  using Numbers = internal::ExpNumbers<float>;
  constexpr std::int32_t bias = Numbers::bias;
  return bits_as<float>(static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + bias) << Numbers::mantissa_bits);
}
MILLRACE_HD inline double power_of_two(double n) {
  using Numbers = internal::ExpNumbers<double>;
  constexpr std::int64_t bias = Numbers::bias;
  return bits_as<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + bias) << Numbers::mantissa_bits);
}

/// `q`, times r plus the factor of each lower degree. The factors are constants of the code: an array would lie in memory.
template <int DEGREE, class T>
MILLRACE_HD T exp_polynomial(T q, T r) {
  if constexpr (DEGREE == 0) {
    return q;
  } else {
    constexpr T factor = internal::ExpNumbers<T>::q[DEGREE - 1];
    return exp_polynomial<DEGREE - 1>(mul_add(q, r, factor), r);
  }
}

/// x = n·ln 2 + r; gives n, and e^r − 1 in `expm1_r`.
template <class T>
MILLRACE_HD T split_exp(T x, T& expm1_r) {
  using Numbers = internal::ExpNumbers<T>;
  constexpr T high = Numbers::ln2_high;
  constexpr T low = Numbers::ln2_low;
  constexpr int degree = sizeof(Numbers::q) / sizeof(T) - 1;
  constexpr T top = Numbers::q[degree];
  const T n = rounded(x * static_cast<T>(1.44269504088896340736));
  T r = mul_add(-n, high, x);
  r = mul_add(-n, low, r);
  const T q = exp_polynomial<degree>(top, r);
  expm1_r = mul_add(r * r, q, r);
  return n;
}

/// a / b, rounded to nearest, for 0 ≤ a ≤ b ≤ 2^30 and b ≥ 1; where a is below 2^-25, b is 1 or 2. In f32 these are the instructions of a device's own
/// division without its check of exponents, behind which stands a call. So the functions below have no branch, and the compiler interleaves
/// those of several elements.
MILLRACE_HD inline double quotient(double a, double b) { return a / b; }
MILLRACE_HD inline float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return refined_quotient(a, b, r);
#else
  return a / b;
#endif
}

template <class T>
MILLRACE_HD T exp_of(T x) {
  using Numbers = internal::ExpNumbers<T>;
  constexpr T least = Numbers::least;
  constexpr T greatest = Numbers::greatest;
  T expm1_r;
  const T n = split_exp(least_of(greatest_of(x, least), greatest), expm1_r);
  const T y = expm1_r + T{1};
  const T half = floor_of(n * static_cast<T>(0.5));
  const T power = y * power_of_two(half) * power_of_two(n - half);
  return x != x ? x : power;
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
  const T small = least_of(magnitude(x), one);
  const T t = expm1_positive(small + small);
  const T y = signed_as(quotient(t, t + T{2}), x);
  return x != x ? x : y;
}

template <class T>
MILLRACE_HD T sigmoid_of(T x) {
  const T e = exp_of(-magnitude(x));
  const T y = quotient(x >= T{0} ? T{1} : e, T{1} + e);
  return x != x ? x : y;
}

template <class T>
MILLRACE_HD T softplus_of(T x) {
  if (x != x) return x;
  return greatest_of(x, T{0}) + log1p_of(exp_of(-magnitude(x)));
}

template <class T>
MILLRACE_HD T elu_of(T x, T slope, T scale) {
  if (x != x || x >= T{0}) return x;
  return slope * expm1_negative(x / scale);
}

template <class T>
MILLRACE_HD T hard_sigmoid_of(T x, T alpha, T beta) {
  const T y = alpha * x + beta;  // NaN also where a slope of 0 meets infinity
  return y != y ? y : least_of(greatest_of(y, T{0}), T{1});
}

template <class T>
MILLRACE_HD T gelu_tanh_of(T x) {
  const T cube = x * x * x;
  const T inner = static_cast<T>(0.79788456080286535588) * (x + static_cast<T>(0.044715) * cube);
  return static_cast<T>(0.5) * x * (T{1} + tanh_of(inner));
}

/// `x` narrowed to bf16, to nearest even, and widened again.
MILLRACE_HD inline float rounded_to_bf16(float x) {
  const std::uint32_t bits = bits_as<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits_as<float>((bits & 0xffff0000u) | 0x00400000u);
  return bits_as<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

/// Σ value(i), i < n, in the order of kernels/reduce.h.
template <class T, class I, class F>
MILLRACE_HD T ordered_sum_of(I n, F value) {
  constexpr I block = 512;
  T total{};
  for (I begin = 0; begin < n; begin += block) {
    const I end = least_of(n, static_cast<I>(begin + block));
    T part{};
    for (I i = begin; i < end; ++i) part += value(i);
    total = begin == 0 ? part : total + part;
  }
  return total;
}

}  // namespace millrace::cuda
