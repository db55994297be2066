// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Skips the views that exporters write around recurrent layers, in block 0. A transpose or reshape that undoes the one before it goes. A stack of slots that gets an axis of extent 1 and loses it again is the stack.
/// Layers of several directions that are joined along an axis of their own, which moves in front of the last one and merges with it, are joined along the
/// last axis: `reshape(transpose(concat(unsqueeze(f, 1), unsqueeze(b, 1), 1), [0, 2, 1, 3]), [0, 0, -1])` is `concat(f, b, 2)`.
void skip_views(Program& program);

}  // namespace millrace
