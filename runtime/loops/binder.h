// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/loops/loop_operands.h>
#include <millrace/runtime/lowering/loop_form.h>
#include <millrace/tensor/sequence_order.h>
#include <millrace/tensor/stream.h>

namespace millrace {

/// The rows of one input, on the binder's place and contiguous.
struct BoundInput {
  std::vector<std::int64_t> rows;  ///< by iteration
  /// All slots of an array that holds them as one tensor, and by iteration the first row in it; −1: the rows stand in `slots`.
  std::optional<Tensor> whole;
  std::vector<std::int64_t> begin;
  /// The rows of each iteration; where `whole` is set, only those of iterations that read before slot 0.
  std::vector<Tensor> slots;
  /// Rows that stand apart, which take the place of `whole` and `slots`; `begin` counts them.
  std::shared_ptr<const detail::PickedRows> picked;
};

/// Binds the operands of a loop for a backend: which rows each iteration reads, how many there are, the states that the first iteration takes,
/// and whether the outputs have room. All backends bind through it, so they accept the same operands, but for the limits that a backend adds.
///
/// Call in this order: for each input `input`, `expected_rows` or rows known otherwise; `set_rows`; `state` for each state; `check_outputs`.
/// Each throws UnsupportedError, which says why the operands do not fit. Copies are enqueued on the stream; nothing is awaited. `form` and
/// `operands` must outlive it.
class LoopBinder {
 public:
  LoopBinder(const LoopForm& form, const LoopOperands& operands, StreamRef stream);

  /// UnsupportedError: the input has another order than the first one.
  void check_order(std::size_t index) const;
  /// Input `index`, all of whose slots are issued. `picks`: the caller takes rows that stand apart, of an array that was filled so.
  BoundInput input(std::size_t index, bool picks = false) const;
  /// The rows of input `index` in one iteration, whose slot is issued, or which reads before slot 0.
  Tensor slot(std::size_t index, std::int64_t iteration) const;
  /// The number of rows of each iteration, for an input whose slots are still to come: the number that the order says, or without an order that of the
  /// first iteration, whose slot is there.
  std::vector<std::int64_t> expected_rows(std::size_t index) const;

  /// `counts`: by input, the rows of each iteration; empty for a loop without inputs.
  void set_rows(const std::vector<std::vector<std::int64_t>>& counts);
  /// The rows of state `index` that the first iteration takes, on the stream's place. The number of rows is that of the first iteration,
  /// except for a state that no input's order leads.
  Tensor state(std::size_t index) const;
  /// `rows`: of each iteration of a loop without inputs; −1: nobody knows.
  void check_outputs(std::int64_t rows = -1) const;

  /// The order that all inputs have; none where no input has one.
  const std::optional<SequenceOrder>& order() const noexcept { return order_; }
  /// After `set_rows`: the step of the order that an iteration is.
  LoopOperands::Slots ordered() const noexcept { return ordered_; }
  /// The rows of each iteration; empty when no input says.
  const std::vector<std::int64_t>& rows() const noexcept { return rows_; }
  /// Whether iterations differ in their rows.
  bool ragged() const noexcept { return ragged_; }
  /// Whether the rows that stay from one iteration to the next may have to move together.
  bool moves() const noexcept { return ragged_ && !order_->sorted() && !form_.states.empty(); }

 private:
  const std::string& port(std::size_t index) const { return form_.step.inputs()[index].name; }
  const VarType& type(std::size_t index) const { return form_.step.var(form_.step.inputs()[index].var).type; }
  /// Rows of the step of which `value`, a slot or a state, consists.
  Tensor as_rows(const Tensor& value) const;
  std::int64_t slot_of(std::size_t input, std::int64_t iteration) const;
  void check_reach(std::size_t index) const;
  std::optional<BoundInput> picked_input(std::size_t index) const;
  LoDTensor held_slot(std::size_t index, std::int64_t iteration) const;
  void check_slot(std::size_t index, DType dtype, const DDim& dims) const;
  Tensor in_place(const Tensor& value) const;
  Tensor of_batch(const SlotValue& value, Tensor rows, const std::string& name) const;

  const LoopForm& form_;
  const LoopOperands& operands_;
  StreamRef stream_;
  std::optional<SequenceOrder> order_;
  LoopOperands::Slots ordered_;
  std::vector<std::int64_t> rows_;
  bool ragged_ = false;
};

}  // namespace millrace
