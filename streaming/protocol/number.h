// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <millrace/tensor/dtype.h>

namespace millrace {

/// A number as its text says it: a whole one that an i64 can hold, exactly; else the nearest f64.
using GivenNumber = std::variant<std::int64_t, double>;

/// The number as an element: integers and booleans exactly, floats to the nearest. Nothing where the type cannot hold it.
template <class T>
std::optional<T> element_of(const GivenNumber& number) {
  if constexpr (std::is_integral_v<T>) {
    if (const auto* real = std::get_if<double>(&number)) {
      constexpr double end = 9223372036854775808.0;
      if (!(*real >= -end && *real < end) || std::trunc(*real) != *real) return std::nullopt;
      return element_of<T>(static_cast<std::int64_t>(*real));
    }
    const std::int64_t whole = std::get<std::int64_t>(number);
    if constexpr (std::is_same_v<T, bool>) {
      if (whole != 0 && whole != 1) return std::nullopt;
    } else if (!std::in_range<T>(whole)) {
      return std::nullopt;
    }
    return static_cast<T>(whole);
  } else {
    const double real = std::visit([](auto value) { return static_cast<double>(value); }, number);
    const T made = convert_element<T>(real);
    if (std::isfinite(real) && !std::isfinite(convert_element<double>(made))) return std::nullopt;
    return made;
  }
}

/// Appends the elements whose bytes those are (any alignment; what is no whole element is left out) to `text` as JSON values with commas between them: integers
/// exactly, booleans as true and false, floats as the shortest decimal that reads back as the same bits, also when it is read as f64 first. −0 is -0.0; what JSON
/// has no number for is the string "nan", "inf" or "-inf".
void append_json_values(std::string& text, DType dtype, std::span<const std::byte> elements);

}  // namespace millrace
