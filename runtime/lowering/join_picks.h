// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Products of rows that are picked out of one tensor, place by place, with one matrix become one product of all rows, of which the places are picked: exporters
/// write the iterations of an unrolled loop so, each with the projection of its own input. A place is picked by a gather, or by a split or a slice and a squeeze behind it. A matrix is read once then, not once for
/// each place. The places are constants, at least half of all places, and the matrices are constants. The bits stay, as a row of a product is a function of the row alone. For host memory, behind `fold_constants`.
void join_picks(Program& program);

}  // namespace millrace
