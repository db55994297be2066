// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/runtime/program/attribute.h>

namespace millrace::ops {

/// The step as attribute `steps` of the op `arithmetic` names it: "before_minimum".
std::string name_of(ArithmeticStep step);
/// The steps of attribute `steps`.
std::vector<ArithmeticStep> steps_of(const Attributes& attributes);

}  // namespace millrace::ops
