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
/// row. Each op must treat each row alone, unless the kernel may couple rows. Bits are those of the ops run one by one.
class RowKernel {
 public:
  /// UnsupportedError names the op that has no rule for rows, or does not keep them apart. `truth`: what inputs and outputs of bool, and of
  /// bf16 in a plan of f32, are.
  enum class Truth : std::uint8_t {
    refused,
    numbers,  ///< in the dtype of the plan, truth as 1 or 0
    integers  ///< the same, and i64 and i32 too: the caller gives none beyond ±`most_given`, and an op that may leave the exact integers is refused
  };
  /// The largest magnitude of integers that are given.
  static constexpr std::int64_t most_given = std::int64_t{1} << 20;
  /// `coupled`: ops that look along the rows are taken too; a kernel that has one sees all rows of an iteration in one block.
  /// `numbers`: the dtype of the plan, f32 or f64; by itself that of the numbers that go in or out, f32 where none does.
  /// `plain`: ops are not joined, and folds go over rows alone, as generators of other code read a plan.
  explicit RowKernel(const Program& program, Truth truth = Truth::refused, bool coupled = false, std::optional<DType> numbers = {},
                     bool plain = false);
  /// The dtype of the inputs and outputs of `program`; nothing where all are integers or truth.
  static std::optional<DType> numbers_of(const Program& program);

  /// One row of an input or output; of a shared input, all of it.
  struct Port {
    bool shared = false;
    DDim dims;
    std::int64_t width = 0;  ///< elements
    double most = 0;         ///< of an output of integers: a magnitude that none exceeds
  };
  const std::vector<Port>& inputs() const noexcept { return inputs_; }
  const std::vector<Port>& outputs() const noexcept { return outputs_; }
  const RowPlan& plan() const noexcept { return *plan_; }
  /// Whether an op looks along the rows: a run is right for all rows of one iteration, at most `block_rows` of them, and for nothing else.
  bool couples_rows() const noexcept { return couples_rows_; }
  /// Weights that are no inputs, and the plans of those that are.
  const RowWeights& known() const noexcept { return known_; }

  /// The matrix of each product as it stands in the program, before it is packed: a value, or a shared input; and whether it is multiplied turned
  /// around. `rows`: the dtype of what it multiplies.
  struct MatrixSource {
    std::optional<Tensor> value;
    std::optional<std::size_t> input;  ///< among the shared ones
    bool transposed = false;
    DType rows = DType::f32;
  };
  const std::vector<MatrixSource>& matrices() const noexcept { return matrices_; }

  /// Weights that are shared inputs, such as a matrix that the program computes, are packed once they are known: before the first run, and
  /// again when they change. `shared` holds the shared inputs in order. The stream packs them, in memory of its own; its later work finds them
  /// there.
  RowWeights weights(std::span<const Tensor> shared, StreamRef stream) const;
  /// Whether `weights` depends on its argument.
  bool packs_inputs() const noexcept { return !late_matrices_.empty() || !late_cells_.empty(); }

  /// `inputs`: views of rows, and of shared inputs with a stride of 0 (those that are only packed may be null).
  void run(const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows, void* workspace,
           SpinHelper* helper = nullptr) const {
    millrace::run(*plan_, weights, inputs, outputs, rows, workspace, helper);
  }
  /// `run` in two steps, for many runs of few rows (kernels/row_plan.h).
  void place(const RowWeights& weights, void* workspace) const { millrace::place(*plan_, weights, workspace); }
  void run_placed(const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows,
                  void* workspace, SpinHelper* helper = nullptr) const {
    millrace::run_placed(*plan_, weights, inputs, outputs, rows, workspace, helper);
  }
  /// `runs` times `run_placed`, with views that go on.
  void run_tracks(const RowWeights& weights, std::span<const RowTrack> inputs, std::span<const RowTrack> outputs, std::int64_t rows,
                  std::int64_t runs, void* workspace, SpinHelper* helper = nullptr) const {
    millrace::run_tracks(*plan_, weights, inputs, outputs, rows, runs, workspace, helper);
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
  /// The last two axes of `value`, whose others have extent 1; k first.
  static Tensor matrix_of(const Tensor& value, bool transposed);
  static PackedLstm packed_cell(const LateCell& late, std::span<const Tensor> shared, StreamRef stream);

  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
  std::optional<RowPlan> plan_;
  RowWeights known_;
  std::vector<MatrixSource> matrices_;
  std::vector<LateMatrix> late_matrices_;
  std::vector<LateCell> late_cells_;
  bool couples_rows_ = false;
};

}  // namespace millrace
