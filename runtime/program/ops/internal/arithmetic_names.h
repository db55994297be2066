// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/kernels/arithmetic.h>

namespace millrace::ops {

/// The step as attribute `steps` of the op `arithmetic` names it: "before_minimum".
std::string name_of(ArithmeticStep step);

}  // namespace millrace::ops
