// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

namespace millrace::cpu {

/// Powers and remainders of floats, element by element: the C library's, but for squares.
template <class T>
T float_power(T x, T y) {
  return y == T{2} ? x * x : std::pow(x, y);
}

/// The remainder with the sign of y.
template <class T>
T float_mod(T x, T y) {
  T rest = std::fmod(x, y);
  if (rest != T{0} && (rest < T{0}) != (y < T{0})) rest += y;
  return rest;
}

}  // namespace millrace::cpu
