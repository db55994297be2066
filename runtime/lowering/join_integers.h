// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes a `conv_integer` of each convolution of block 0 along one axis or two whose input is bytes less a zero, as floats, and whose weights are known whole numbers, where sums in its
/// dtype are exact, and a cast of it. Bits stay. For host memory with instructions for such products, behind `join_windows`.
void take_integers(Program& program);

/// Makes a `byte_sums` of each sum in block 0 over known last axes of bytes, or of bytes less a zero, as floats, which hold the sums exactly. Bits stay. For host memory, ahead of
/// `join_arithmetic`.
void take_byte_sums(Program& program);

/// Makes one op `integer_arithmetic` of each `matmul_integer` of block 0 with known weights and one zero of its rows, and the `arithmetic` that alone reads its sums, and a
/// `conv_integer` with it alike: with operands of one element, or of one for each column. Bits stay. For host memory, behind `join_arithmetic`.
void join_integers(Program& program);

}  // namespace millrace
