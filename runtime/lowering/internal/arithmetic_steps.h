// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include <millrace/kernels/arithmetic.h>

namespace millrace::lowering {

/// An op on two elements, as a step on the first and on the second of them.
struct TwoSides {
  std::string_view op;
  ArithmeticStep of_first, of_second;
};

/// Null for an op that is no step.
inline const TwoSides* two_sides(std::string_view op) {
  static constexpr TwoSides known[] = {
      {"add", ArithmeticStep::add, ArithmeticStep::add},
      {"mul", ArithmeticStep::mul, ArithmeticStep::mul},
      {"sub", ArithmeticStep::sub, ArithmeticStep::from},
      {"div", ArithmeticStep::div, ArithmeticStep::into},
      {"minimum", ArithmeticStep::minimum, ArithmeticStep::before_minimum},
      {"maximum", ArithmeticStep::maximum, ArithmeticStep::before_maximum},
  };
  const auto* const found = std::find_if(std::begin(known), std::end(known), [op](const TwoSides& each) { return each.op == op; });
  return found == std::end(known) ? nullptr : found;
}

}  // namespace millrace::lowering
