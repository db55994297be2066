// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/gemm.h>
#include <millrace/kernels/int8.h>
#include <millrace/kernels/lstm_cell.h>
#include <millrace/kernels/reduce.h>
#include <millrace/kernels/row_function.h>
#include <millrace/kernels/unary.h>
#include <millrace/tensor/spin_helper.h>
#include <millrace/tensor/tensor.h>

/// **A chain of row-wise ops as one kernel.** Rows do not see each other; the work of one row in a whole step of a
/// recurrence is written down once, as ops over registers, and runs a block of rows at a time: products over all rows
/// of the block, the ops between them a few rows at a time, so that intermediate values never leave the first cache.
/// Each op computes exactly what the kernel of its name computes, so a chain has the bits of its parts, whatever the
/// number of rows.
namespace millrace {

/// `width` elements for each row: given by the caller, taken by the caller, or held while a block runs; a constant has
/// the same elements for all rows.
struct RowRegister {
  enum class Kind : std::uint8_t { input, output, scratch, constant };
  Kind kind = Kind::scratch;
  std::int64_t width = 0;
  std::size_t place = 0;  ///< among the inputs, outputs or constants
};

/// Elements begin, begin + inner_step, … of a register, `inner` of them, and that `outer` times `outer_step` apart. A step of 0 repeats,
/// one below 0 goes backwards.
struct RowOperand {
  int reg = -1;
  std::int64_t begin = 0;
  std::int64_t outer_step = 0;
  std::int64_t inner_step = 1;
};

struct RowOp {
  enum class Kind : std::uint8_t {
    unary,        ///< out = f(in[0])
    binary,       ///< out = in[0] ∘ in[1]; comparisons and logic give 1 or 0
    where,        ///< out = in[0] ≠ 0 ? in[1] : in[2]
    round_bf16,   ///< out = in[0] narrowed to bf16, and widened again; f32 alone
    copy,         ///< out = in[0]
    quantize,     ///< quantize_rows of `outer` rows of `inner`: out the values, 4 bytes to an element, out2 the scales; f32 alone
    matmul_int8,  ///< out[outer, n] = values in[0], four k to an element, with scales in[1], times `weights` (kernels/int8.h)
    matmul,       ///< out[outer, n] = in[0][outer, k] · matrix `weights`
    lstm_cell,    ///< out, out2 = cell `weights` of in[0] (rows of C, or, `projected`, of 4·H), h in[1] (`summed`: h·R), c in[2]
    reduce,       ///< out[outer] = in[0][outer, inner] folded; its rows or its columns lie side by side (a step of 1)
    softmax,      ///< of each of `outer` rows of `inner`
    log_softmax,
    layer_norm,           ///< of each of `outer` rows of `inner`, times in[1], plus in[2] where it is
    layer_norm_gradient,  ///< of the same: out = that of in[0], out2 = the rows whose sum is that of the scale in[1], given in[2]
    function  ///< out, and out2 where it is = function `weights` of those of `in` that are; each operand is a register's row from `begin` on, or `outer`
    ///< rows that are `outer_step` apart
  };
  static constexpr std::size_t most_inputs = 6;
  Kind kind = Kind::copy;
  RowOperand out;
  RowOperand out2;
  RowOperand in[most_inputs];
  std::int64_t outer = 1;
  std::int64_t inner = 0;
  Unary unary = Unary::identity;
  UnaryParams params = {};
  Binary binary = Binary::add;
  Reduction reduction = Reduction::sum;
  double epsilon = 0;
  std::size_t weights = 0;
  bool projected = false;
  bool summed = false;    ///< with `projected`
  bool in_place = false;  ///< of a function: out2 may lie where in[0] does
};

/// The description of a plan. Registers are written before they are read, scratch and outputs by ops alone.
struct RowDesc {
  DType dtype = DType::f32;  ///< f32 or f64
  std::vector<RowRegister> registers;
  std::vector<RowOp> ops;
};

/// The weights of a plan; several may share a plan.
struct RowWeights {
  struct Matrix {
    GemmPlan plan;
    PackedMatrix packed;
  };
  struct Cell {
    LstmPlan plan;
    PackedLstm packed;
  };
  std::vector<Tensor> constants;  ///< contiguous, of the plan's dtype
  std::vector<Matrix> matrices;
  struct Int8 {
    Int8Plan plan;
    PackedInt8 packed;
  };
  std::vector<Cell> cells;
  std::vector<Int8> int8;
  std::vector<RowFunction> functions;
};

/// Immutable, cheap to copy, shareable between threads.
class RowPlan {
 public:
  /// ArgumentError, DTypeError for a description that makes no sense: registers read before they are written, operands
  /// that leave their register, ops that the dtype does not have.
  explicit RowPlan(RowDesc desc);

  const RowDesc& desc() const noexcept;
  /// Rows of a block: more than that run one block after another.
  std::int64_t block_rows() const noexcept;
  /// Scratch of `run`, aligned to 64 bytes.
  std::int64_t workspace_bytes() const noexcept;
  /// Equal parts of a row that never read each other, and that `run_tracks` takes one after the other through all runs; 1 where it does not.
  std::int64_t sections() const noexcept;

  struct State;
  const State& state() const noexcept { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// Whether each element of the op's result is a function of one element of each operand.
bool is_elementwise(const RowOp& op);

/// Whether the kernel has that function (the rest are left to kernels of their own).
bool row_plan_has(Unary kind);

/// Multiply-adds of a product or cell from which on half of it is worth handing to another thread that spins.
inline constexpr std::int64_t row_split_work = std::int64_t{1} << 17;

/// Runs the ops for `rows` rows, in the calling thread; `helper`, if any, does half of the columns or units of large products and cells. No bit
/// depends on it. `inputs` and `outputs` are the views in the order of their places; an output may
/// not overlap an input unless they are the same rows of an op that reads nothing else of them. Allocates nothing.
void run(const RowPlan& plan, const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs,
         std::int64_t rows, void* workspace, SpinHelper* helper = nullptr);

/// `run` in two steps, for many runs of few rows: `place` writes into the workspace what does not change between them, and `run_placed` may follow
/// any number of times, as long as plan and weights are the same and no other plan uses the workspace.
void place(const RowPlan& plan, const RowWeights& weights, void* workspace);
void run_placed(const RowPlan& plan, const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs,
                std::int64_t rows, void* workspace, SpinHelper* helper = nullptr);

/// A view that goes on from run to run: by `step` bytes, or, where `other` is given, from `view` to `other` and back. Of an output with `other` the place that
/// the last run does not write is unspecified afterwards.
struct RowTrack {
  RowView view;
  std::int64_t step = 0;
  void* other = nullptr;
};
/// `runs` times `run_placed`, each on the next place of every track; an input may lie where an output of the run before does. At most `block_rows` rows.
/// `helper` does half of the sections, where there are several.
void run_tracks(const RowPlan& plan, const RowWeights& weights, std::span<const RowTrack> inputs, std::span<const RowTrack> outputs,
                std::int64_t rows, std::int64_t runs, void* workspace, SpinHelper* helper = nullptr);

}  // namespace millrace
