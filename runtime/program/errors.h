// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/error.h>

namespace millrace {

MILLRACE_ERROR(ProgramError, Error);    ///< a program that is refused when it is built, loaded or rewritten: names block, op and var
MILLRACE_ERROR(ValueKindError, Error);  ///< a value that is asked for as a tensor, an array, an order or a list, and is another

}  // namespace millrace
