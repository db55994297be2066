// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op `gather_planes` of two `gather` of block 0 along the last two axes, each by a list of places, the first of which nothing else reads: a nearest `Resize` of pictures, whose
/// elements are read and written once. For host memory, behind `move_bytes`, which looks for gathers.
void join_gathers(Program& program);

}  // namespace millrace
