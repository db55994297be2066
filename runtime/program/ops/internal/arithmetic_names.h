// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/kernels/arithmetic.h>

namespace millrace::ops {

/// The step as attribute `steps` of the op `arithmetic` names it: "before_minimum".
std::string name_of(ArithmeticStep step);
/// The steps of that attribute, with blanks between the names; ProgramError for another word.
std::vector<ArithmeticStep> steps_of(const std::string& text);

}  // namespace millrace::ops
