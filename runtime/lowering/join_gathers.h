// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op `gather_planes` of two `gather` of block 0 along the last two axes, each by a list of places, the first of which nothing else reads: a nearest `Resize` of pictures, whose
/// elements are read and written once. For host memory, behind `move_bytes`, which looks for gathers.
void join_gathers(Program& program);

/// Makes one op `gather_sum` of each sum in block 0 of gathers from one tensor along one axis, each times its own weights along that axis, which nothing else reads: a linear or cubic
/// `Resize` along an axis. Bits stay. For host memory, ahead of `join_arithmetic`.
void join_weighted_gathers(Program& program);

}  // namespace millrace
