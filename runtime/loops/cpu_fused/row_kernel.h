// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <millrace/kernels/row_plan.h>
#include <millrace/runtime/program/program.h>

namespace millrace {

/// A straight-line program over rows as one kernel (kernels/row_plan.h). Immutable, cheap to copy.
///
/// The program's inputs are *rows*, whose axis 0 has an unknown extent and counts them, or *shared*: the same for every
/// row. Each op must treat each row alone. Bits are those of the ops run one by one.
class RowKernel {
 public:
  /// UnsupportedError names the op that has no rule for rows, or does not keep them apart. `truth`: what inputs and outputs of bool, and of
  /// bf16 in a plan of f32, are.
  enum class Truth : std::uint8_t { refused, numbers };  ///< numbers: in the dtype of the plan, truth as 1 or 0
  explicit RowKernel(const Program& program, Truth truth = Truth::refused);

  /// What one row of an input or output is; of a shared input, all of it.
  struct Port {
    bool shared = false;
    DDim dims;
    std::int64_t width = 0;  ///< elements
  };
  const std::vector<Port>& inputs() const noexcept { return inputs_; }
  const std::vector<Port>& outputs() const noexcept { return outputs_; }
  const RowPlan& plan() const noexcept { return *plan_; }
  /// Weights that are no inputs, and the plans of those that are.
  const RowWeights& known() const noexcept { return known_; }

  /// Weights that are shared inputs, such as a matrix that the program computes, are packed once they are known: before the first run, and
  /// again when they change. `shared` holds the shared inputs in order.
  RowWeights weights(std::span<const Tensor> shared) const;
  /// Whether `weights` depends on its argument.
  bool packs_inputs() const noexcept { return !late_matrices_.empty() || !late_cells_.empty(); }

  /// `inputs`: views of rows, and of shared inputs with a stride of 0 (those that are only packed may be null).
  void run(const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows, void* workspace,
           SpinHelper* helper = nullptr) const {
    millrace::run(*plan_, weights, inputs, outputs, rows, workspace, helper);
  }

 private:
  friend class RowCompiler;
  struct LateMatrix {
    std::size_t place = 0;  ///< in RowWeights::matrices
    std::size_t input = 0;  ///< among the shared ones
    bool transposed = false;
  };
  struct LateCell {
    std::size_t place = 0;
    LstmDesc desc;
    /// W, R, bias, peepholes: a shared input, or a constant.
    std::optional<std::size_t> input[4];
    std::optional<Tensor> constant[4];
  };
  static PackedLstm packed_cell(const LateCell& late, std::span<const Tensor> shared);

  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
  std::optional<RowPlan> plan_;
  RowWeights known_;
  std::vector<LateMatrix> late_matrices_;
  std::vector<LateCell> late_cells_;
};

}  // namespace millrace
