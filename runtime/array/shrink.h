// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/array/slot_value.h>
#include <millrace/tensor/stream.h>

namespace millrace {

/// The rows (with levels: the outermost sequences) of `state` whose sequences still live at the iteration of `step_input`: a view of the first
/// ones when the order is sorted, else gathered on `stream`. Both were read from arrays made with the same order; ArgumentError names both
/// values otherwise, and when the step input's iteration comes before the state's. The result has the step input's iteration.
SlotValue shrink(const SlotValue& state, const SlotValue& step_input, StreamRef stream);

/// Shrinks a value that was computed, row by row, from a value read at iteration `from` (−1: the boot).
SlotValue shrink(const LoDTensor& state, const SequenceOrder& order, std::int64_t from, std::int64_t to, StreamRef stream);

}  // namespace millrace
