// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/array/tensor_array.h>

namespace millrace {

/// The inverse of `unpack`: the rows of all slots as sequences again, with the outer levels, the empty sequences and the caller's order;
/// levels that the slots have stay below. A task: it waits until every slot is issued, then gathers on `stream`; nothing is copied where
/// the order permits. ArgumentError unless the array has as many slots as the order has steps; LoDError unless `level` is the order's (it
/// names both), or when a slot has other rows than sequences live.
task<LoDTensor> pack(TensorArray array, int level, SequenceOrder order, StreamRef stream);

}  // namespace millrace
