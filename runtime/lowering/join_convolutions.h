// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op `conv_arithmetic` or `conv1d_arithmetic` of each `conv` or `conv1d` of block 0 and the `arithmetic` that alone reads its result, in its extents:
/// a result is written once, and its arithmetic happens while it is in a cache. An operand may be that result. Bits stay. For host memory, behind
/// `join_arithmetic`.
void join_convolutions(Program& program);

}  // namespace millrace
