// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/runtime/array/tensor_array.h>

namespace millrace {

/// The sequences of `order`, in the caller's order, of an array whose slot i holds run i of the iterations of each sequence, by rank: rows with one level
/// of LoD, in the order in which they stand in their sequence. A task: it waits until every slot is issued, then copies each row once on `stream`. LoDError
/// when the slots have other sequences, or together another number of rows, than the order.
task<LoDTensor> join_runs(TensorArray array, SequenceOrder order, StreamRef stream);

/// The inverse: for each slot of `array` the rows of `joined` that `join_runs` takes from it, without LoD. `joined` has a row for each row of the order.
task<std::vector<Tensor>> split_runs(Tensor joined, TensorArray array, SequenceOrder order, StreamRef stream);

}  // namespace millrace
