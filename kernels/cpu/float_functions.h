// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

namespace millrace::cpu {

/// `x` as arithmetic has it (kernel_floats.h): where a subnormal equals zero, the zero of its sign. The C library looks at bits instead.
template <class T>
T as_arithmetic_has(T x) {
  return x == T{0} ? std::copysign(T{0}, x) : x;
}

/// Powers and remainders of floats, element by element: the C library's, but for squares.
template <class T>
T float_power(T x, T y) {
  return y == T{2} ? x * x : as_arithmetic_has(std::pow(as_arithmetic_has(x), as_arithmetic_has(y)));
}

template <class T>
T float_fmod(T x, T y) {
  return as_arithmetic_has(std::fmod(as_arithmetic_has(x), as_arithmetic_has(y)));
}

/// The remainder with the sign of y.
template <class T>
T float_mod(T x, T y) {
  T rest = float_fmod(x, y);
  if (rest != T{0} && (rest < T{0}) != (y < T{0})) rest += y;
  return rest;
}

}  // namespace millrace::cpu
