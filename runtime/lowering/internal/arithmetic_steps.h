// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include <millrace/kernels/arithmetic.h>

namespace millrace::lowering {

/// An op on one element, as a step.
struct OneSide {
  std::string_view op;
  ArithmeticStep step;
};

/// Null for an op that is no step on its only operand, or that has attributes.
inline const OneSide* one_side(std::string_view op) {
  static constexpr OneSide known[] = {
      {"relu", ArithmeticStep::relu},
      {"sqrt", ArithmeticStep::sqrt},
      {"neg", ArithmeticStep::neg},
      {"abs", ArithmeticStep::abs},
      {"reciprocal", ArithmeticStep::reciprocal},
      {"round", ArithmeticStep::round},
      {"hard_swish", ArithmeticStep::hard_swish},
      {"mish", ArithmeticStep::mish},
      {"softplus", ArithmeticStep::softplus},
      {"exp", ArithmeticStep::exp},
      {"tanh", ArithmeticStep::tanh},
      {"sigmoid", ArithmeticStep::sigmoid},
      {"erf", ArithmeticStep::erf},
  };
  const auto* const found = std::find_if(std::begin(known), std::end(known), [op](const OneSide& each) { return each.op == op; });
  return found == std::end(known) ? nullptr : found;
}

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
