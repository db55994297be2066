// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/tensor/pool.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

class LoopRun;

/// The values that one run of a loop works on, in the order of its form (lowering/loop_form.h).
struct LoopOperands {
  /// The run that makes the slots of an input, as output `output`, concurrently with this one.
  struct Source {
    const LoopRun* run = nullptr;
    std::size_t output = 0;
  };
  /// The slot at the first iteration, and how much further it is with each one: `stride` of the form's index.
  struct Slots {
    std::int64_t first = 0;
    std::int64_t stride = 1;
  };
  PooledVector<TensorArray> inputs;
  PooledVector<Source> sources;  ///< by input; none, or a null run: the slots are there
  PooledVector<bool> arriving;   ///< by input: slots come while the iterations run, the first one is there; empty: none do
  PooledVector<Slots> read;
  PooledVector<std::optional<SlotValue>> boots;  ///< by input: the rows before slot 0, where the loop reads there; in the batch's order
  PooledVector<TensorArray> outputs;
  PooledVector<bool> leaving;  ///< by output: another rank takes its slots while the iterations run; empty: none does
  PooledVector<Slots> written;
  PooledVector<SlotValue> states;  ///< before the first iteration; with an order: in the batch's order
  PooledVector<Tensor> shared;
  std::int64_t iterations = 0;
};

}  // namespace millrace
