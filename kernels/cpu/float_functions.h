// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include <millrace/tensor/kernel_floats.h>

namespace millrace::cpu {

/// `x` as arithmetic reads and writes it: the zero of its sign below the normal numbers. The C library looks at bits instead.
template <class T>
T flushed(T x) {
  return KernelFloats::flushes && std::abs(x) < std::numeric_limits<T>::min() ? std::copysign(T{0}, x) : x;
}

/// Powers and remainders of floats, element by element: the C library's, but for squares.
template <class T>
T float_power(T x, T y) {
  return y == T{2} ? x * x : flushed(std::pow(flushed(x), flushed(y)));
}

template <class T>
T float_fmod(T x, T y) {
  return flushed(std::fmod(flushed(x), flushed(y)));
}

/// The remainder with the sign of y.
template <class T>
T float_mod(T x, T y) {
  T rest = float_fmod(x, y);
  if (rest != T{0} && (rest < T{0}) != (y < T{0})) rest += y;
  return rest;
}

}  // namespace millrace::cpu
