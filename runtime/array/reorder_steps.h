// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/array/tensor_array.h>

namespace millrace {

/// The slots of `array`, which was made with the order `from`, as an array of the order `to` over the same sequences: `unpack(pack(array, from), to)`
/// with one copy instead of two. A task: it waits until every slot is issued, then gathers on `stream`; nothing is copied where the orders agree. On the
/// host rows that are there are picked (`TensorArray::fill_picked`): a slot whose rows stand side by side is a view of them, and whoever reads another one,
/// or all of them, copies them. Elsewhere large steps of sequences of one length are views. `memory`: of a copy that is made at once, where the slots of
/// `array` lie side by side; null is that of the stream. LoDError, naming both, when the orders are of other sequences or levels; errors as `pack`.
task<TensorArray> reorder_steps(TensorArray array, SequenceOrder from, SequenceOrder to, StreamRef stream,
                                std::shared_ptr<MemoryResource> memory = nullptr);

}  // namespace millrace
