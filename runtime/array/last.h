// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/array/tensor_array.h>

namespace millrace {

/// For each sequence of `order`, in the caller's order, the row that the last of its steps wrote; for an empty one its row of `boot`, which
/// has a row for each sequence, in the caller's order too. A task: it waits until every slot is issued, then gathers on `stream`.
/// ArgumentError unless the array has as many slots as the order has steps; LoDError when `boot` has another number of rows than there are
/// sequences, a slot another one than sequences live, or a slot has sequences of its own.
task<Tensor> last_rows(TensorArray array, SequenceOrder order, Tensor boot, StreamRef stream);

}  // namespace millrace
