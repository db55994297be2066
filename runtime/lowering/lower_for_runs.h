// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>
#include <millrace/tensor/place.h>

namespace millrace {

/// Rewrites a program for runs of whole inputs at `place`: constants are folded, views around stacks and unread pure ops go, windows, arithmetic and products of picked rows become one op each in host memory, and arrays that are
/// packed in the order of their slots are handed on. Inputs and outputs stay. `Executable` and calls of straight-line programs run the same ops, so both have the
/// same bits.
/// `join_loops`: whether loops that filter, or that carry matrices, become ops (join_filters.h, join_matrices.h). True where one did.
bool lower_for_runs(Program& program, const Place& place, bool join_loops = true);

}  // namespace millrace
