// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/array/slot_value.h>
#include <millrace/tensor/stream.h>

namespace millrace {

/// A value with one row (with levels: one outermost sequence) for each sequence of `order`, in the caller's order and the empty ones too, as
/// the batch wants it: a boot state or a static input, at iteration −1. `shrink` takes it to a step. Nothing is copied when the orders agree.
/// LoDError when the numbers differ.
SlotValue reorder(const LoDTensor& x, const SequenceOrder& order, StreamRef stream);

}  // namespace millrace
