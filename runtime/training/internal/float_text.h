// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>
#include <system_error>

namespace millrace::training::internal {

/// Whether the decimal number `text`, without a sign, is below 1. `std::from_chars` says of 1e-400 and of 1e400 alike that they are out of range.
inline bool below_one(std::string_view text) {
  const std::size_t mark = text.find_first_of("eE");
  const std::string_view digits = text.substr(0, mark);
  std::string_view power = mark == text.npos ? std::string_view() : text.substr(mark + 1);
  const bool negative = power.starts_with('-');
  if (negative || power.starts_with('+')) power.remove_prefix(1);
  constexpr std::int64_t most = std::int64_t{1} << 40;
  std::int64_t exponent = 0;
  if (std::from_chars(power.data(), power.data() + power.size(), exponent).ec == std::errc::result_out_of_range) exponent = most;
  exponent = negative ? -std::min(exponent, most) : std::min(exponent, most);
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  const auto first = static_cast<std::int64_t>(std::min(digits.find_first_of("123456789"), digits.size()));
  return (first < point ? point - first - 1 : point - first) + exponent < 0;
}

/// Reads the whole of a decimal `text`, with or without a sign, as the nearest f32. A number too small for f32 becomes a denormal or a zero of its sign.
/// `invalid_argument`: no number; `result_out_of_range`: a number too great for f32. "nan" and "inf" are numbers here.
inline std::errc parse_float(std::string_view text, float& value) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return std::errc::invalid_argument;
  }
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error == std::errc::invalid_argument || end != last) return std::errc::invalid_argument;
  if (error == std::errc()) return error;
  const bool negative = text.starts_with('-');
  if (!below_one(text.substr(negative ? 1 : 0))) return std::errc::result_out_of_range;
  double wide = 0;  // holds the denormals of f32, which some libraries call out of range
  if (std::from_chars(text.data(), last, wide).ec != std::errc()) wide = negative ? -0.0 : 0.0;
  value = static_cast<float>(wide);
  return {};
}

}  // namespace millrace::training::internal
