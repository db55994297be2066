// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes ops of block 0 that only move elements (`concat`, `gather`, `transpose` and views) move bytes, as quantized networks need it. Such an op stands between an `arithmetic` that makes floats of bytes
/// and one that makes bytes of floats, both by known numbers. Each byte takes both formulas in front of the move. Bits stay. A move with fewer results than elements stays as it is. For host memory, behind
/// `join_arithmetic`.
void move_bytes(Program& program);

}  // namespace millrace
