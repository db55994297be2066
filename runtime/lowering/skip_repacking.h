// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// What one recurrent layer packs and the next unpacks in the same order is the array itself: the next layer reads its slots, and may read
/// them while the former is still at work. A `pack` that nobody else reads goes. The same for what a dense layer stacks and the next
/// unstacks, also where axes of extent 1 came and went in between.
void skip_repacking(Program& program);

}  // namespace millrace
