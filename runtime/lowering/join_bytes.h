// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op `byte_map` of the ops `arithmetic` of block 0 through which a byte is a function of one byte alone, whichever way: quantized networks write x · sigmoid(x) as two formulas
/// of bytes, the second of which reads the bytes of the first and the floats of x. The table is made by the formulas themselves, so that bits stay. Floats and bytes on the way stay where
/// something else reads them. For host memory, behind `join_arithmetic`.
void join_bytes(Program& program);

}  // namespace millrace
