// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op of each loop of block 0 that filters each channel of a dense input: whose one state is a window of the last rows, and whose output is a sum of
/// rows of the window times weights of the channels, as `layers::causal_conv` spells it. `causal_filter` reads the input where it lies, also in front of a
/// transpose that brought its places to axis 0. Bits stay the same. For host memory, behind `fold_constants`. True where there was such a loop.
bool join_filters(Program& program);

/// Whether a loop of block 0 looks like a filter at a glance: false where `join_filters` finds none.
bool may_filter(const Program& program);

}  // namespace millrace
