// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/array/slot_value.h>
#include <millrace/tensor/stream.h>

namespace millrace::ops {

/// The `shrink` op: a state without an order has the rows of the iteration before `step`; before the first iteration it stands in the caller's
/// order.
SlotValue shrunk(const SlotValue& state, const SlotValue& step, StreamRef stream);

}  // namespace millrace::ops
