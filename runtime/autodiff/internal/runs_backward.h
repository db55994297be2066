// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <vector>

#include <millrace/runtime/autodiff/internal/array_gradients.h>
#include <millrace/runtime/autodiff/internal/recurrence_backward.h>
#include <millrace/runtime/autodiff/internal/recurrent_loop.h>

namespace millrace::autodiff {

/// The backward of a recurrence over ragged rows under `recompute`: the forward loop becomes a loop over runs of iterations, each a recurrence of its own,
/// that keeps the states at the beginning of each run and nothing else. The backward loop goes through the runs from the last to the first, computes one
/// again, and calls `recurrence_backward` for it. Gradients of weights are one product for each 512 rows, so that their bits are those of one product of all
/// rows. Runs end with the sequences: the rows of an iteration of the backward loop are those of `keep`, in the same order.
///
/// `loop`: over rows with one level of LoD, without static inputs, whose arrays are read by `pack` and `last_rows` alone; `live`: the states that a
/// gradient reaches. UnsupportedError for any other loop, and for weights whose gradient is neither a product nor a sum of rows. Changes `program` even when
/// it throws.
LoopGradients runs_backward(Program& program, const std::set<VarId>& active, const RecurrentLoop& loop, const ArrayGradients& arrays,
                            const std::vector<bool>& live, const MemoryPolicy& memory);

/// Whether a loop, given by its body, is one over runs that `runs_backward` has made.
bool goes_over_runs(const Program& program, int body);

}  // namespace millrace::autodiff
