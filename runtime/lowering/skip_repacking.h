// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// The array that one recurrent layer packs and the next unpacks in the same order is handed on as it is: the next layer reads its slots, and may
/// read them while the first layer is still at work. A `pack` that nobody else reads goes. The same for what a dense layer stacks and the next
/// unstacks, also where axes of extent 1 came and went in between.
///
/// `both_ways`: likewise what the backward loop of a layer packs and that of the layer below unpacks, where the rows lost their LoD and got the same one
/// back in between. The backward loops of all layers may then run side by side, and end together. Without it the gradients of an upper layer are complete before the loop below
/// begins, and may leave for other ranks meanwhile.
void skip_repacking(Program& program, bool both_ways = false);

}  // namespace millrace
