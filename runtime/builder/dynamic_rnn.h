// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <millrace/runtime/builder/rnn_block.h>

namespace millrace::build {

struct DynamicRNNOptions {
  /// The level whose items are the steps: 0 = outermost. Above the last level a step is a sub-sequence of each sequence, such as an inner DynamicRNN
  /// takes.
  int level = 0;
  /// Longest sequences first: those that live are then always the first rows, and `shrink` copies nothing. The caller sees no difference.
  bool sort_by_length = true;
  /// Each sequence from its end to its beginning; outputs stand where the inputs stood.
  bool reverse = false;
  std::int64_t parallel_iterations = 8;
};

/// A loop over the steps of sequences of different lengths, without padding. The batch shrinks as sequences end; boots, static inputs,
/// outputs and last states are in the caller's order. Empty sequences are legal. See RnnBlock for the calls.
///
/// step_input(x): x has LoD to `level` at least. Several inputs must have sequences of equal lengths: LoDError, naming both with their
/// LoDs, else.
/// static_input(x): one row for each sequence, or with LoD one sub-sequence; re-ordered with the batch, and shrinking with it.
/// memory(boot): a row for each sequence. Nested: an inner DynamicRNN over the sub-sequences of a step may boot from a memory of the outer
/// one, and the outer memory be updated with the inner `last`: that equals one DynamicRNN over the rows.
/// outputs(): LoDTensors with the levels of x down to `level`, and below them what the steps gave.
class DynamicRNN : public RnnBlock {
 public:
  using Options = DynamicRNNOptions;
  explicit DynamicRNN(Options options = {});

  Var step_input(const Var& x) override;
  Var static_input(const Var& x) override;
  /// This step of an array with the order of this loop (`order()`), such as `reorder_steps` makes of what another loop wrote. Behind the first step
  /// input.
  Var step_slot(const ArrayVar& slots);
  /// The order of this loop, and the slots of the first step input. Behind the first step input, and after the block.
  const Order& order() const;
  const ArrayVar& input_slots() const;

 protected:
  ArrayVar make_array(const std::string& name) const override;
  Var alive(const Var& state) const override;
  Var boot_rows(DType dtype, const std::vector<std::int64_t>& row_shape, double value) const override;
  Var joined(const ArrayVar& array) const override;
  Var last_of(const Memory& memory) const override;

 private:
  Options options_;
  Var source_;  ///< the first step input, whole
  std::optional<Order> order_;
  std::optional<ArrayVar> input_slots_;
};

}  // namespace millrace::build
