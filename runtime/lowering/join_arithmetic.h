// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op `arithmetic` of sums, differences, products, quotients, bounds, squares, `relu`, `round`, `sigmoid` and the like of block 0 that follow each other in the same declared extents. Nothing
/// else reads the values between them, so elements are read and written once. Bits stay. A `cast` of u8, i8 or i32 to f32 in front and one to u8 or i8 behind are part of it. For f32 and f64 without LoD in host memory, behind `join_windows`, which
/// looks for sums and products itself.
void join_arithmetic(Program& program);

}  // namespace millrace
