// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// What one recurrent layer packs and the next unpacks in the same order is the array itself: the next layer reads its slots, and may read
/// them while the former is still at work. A `pack` that nobody else reads goes.
void skip_repacking(Program& program);

}  // namespace millrace
