// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Products of rows that are picked out of one tensor, place by place, with one matrix become one product of all rows, of which the places are picked: exporters
/// write the iterations of an unrolled loop so, each with the projection of its own input. A place is picked by a gather, or by a split or a slice and a squeeze behind it. A matrix is read once then, not once for
/// each place. For places that are constants, at least half of all there are, and matrices that are. Bits stay: those of a row are a function of the row. For host memory, behind `fold_constants`.
void join_picks(Program& program);

}  // namespace millrace
