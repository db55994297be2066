// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

#include <millrace/tensor/error.h>

namespace millrace {

namespace detail {

// The error is made apart, so that a product costs its callers no call.
template <class T>
[[noreturn, gnu::cold, gnu::noinline]] void throw_size(T a, const char* with, T b) {
  throw OverflowError("size: " + std::to_string(a) + with + std::to_string(b) + " does not fit its integer");
}

}  // namespace detail

/// The one helper for sizes that come from outside: a·b, a+b, or OverflowError that names both.
template <std::integral T>
constexpr T checked_mul(T a, T b) {
  T product{};
  if (__builtin_mul_overflow(a, b, &product)) detail::throw_size(a, " * ", b);
  return product;
}

template <std::integral T>
constexpr T checked_add(T a, T b) {
  T sum{};
  if (__builtin_add_overflow(a, b, &sum)) detail::throw_size(a, " + ", b);
  return sum;
}

/// `value` as a `To`, or OverflowError.
template <std::integral To, std::integral From>
constexpr To checked_cast(From value) {
  if (!std::in_range<To>(value)) throw OverflowError("size: " + std::to_string(value) + " does not fit its integer");
  return static_cast<To>(value);
}

}  // namespace millrace
