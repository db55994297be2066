// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op `integer_arithmetic` of each `matmul_integer` of block 0 with known weights and one zero of its rows, and the `arithmetic` that alone reads its sums: with
/// operands of one element, or of one for each column. Bits stay. For host memory, behind `join_arithmetic`.
void join_integers(Program& program);

}  // namespace millrace
