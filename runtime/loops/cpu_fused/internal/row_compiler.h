// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/loops/cpu_fused/row_kernel.h>
#include <millrace/runtime/lowering/internal/matrix_states.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {

/// Iterations the ops of a program into ops over registers. Shapes cost nothing: a slice, a transposition or a stretched axis is another view of a
/// register, and is copied only where an op needs its elements side by side.
class RowCompiler {
 public:
  /// Elements of a register: `dims` with `strides`, for each row when `rows`, else the same for all.
  struct View {
    bool rows = false;
    int reg = -1;
    std::int64_t begin = 0;
    DDim dims;
    DDim strides;

    std::int64_t elements() const { return dims.elements(); }
  };

  RowCompiler(const Program& program, RowKernel& made, RowKernel::Truth truth, bool coupled, std::optional<DType> numbers, bool plain);
  void compile();

  // ---- For the rules of ops (row_rules.cpp) ----
  const Program& program() const noexcept { return program_; }
  bool folds_columns() const noexcept { return !plain_; }
  RowDesc& desc() noexcept { return desc_; }
  const View& at(VarId var) const;
  bool has(const Op& op, std::size_t input) const { return input < op.inputs.size() && op.inputs[input] != no_var; }
  void bind(VarId var, View view) { views_[var] = std::move(view); }
  /// A new contiguous register for `var`, which has rows.
  View make(VarId var);
  View make(const DDim& dims);
  /// The same elements side by side.
  View contiguous(const View& view);
  /// The form of a view whose axis 0 is no longer that of the rows: an axis of the program's var as one of `dims`.
  int axis_of(const Op& op, VarId var, std::int64_t axis) const;
  /// Elementwise: `op` with its operands stretched to what `var` is.
  void elementwise(RowOp op, const std::vector<View>& operands, VarId var);
  View elementwise(RowOp op, const std::vector<View>& operands, const DDim& dims);
  /// Whether `weights` is one matrix for all rows of `x`, which is then packed once.
  bool is_one_matrix(VarId x, VarId weights) const;
  /// Other products: of matrices that each row brings itself, or of a matrix for each of some axes of a row.
  View matmul_rows(const Op& op, const DDim& out_dims);
  void matmul(const Op& op, VarId x, VarId weights, bool transposed, const View& out);
  /// Rows of `from`, along its last axis, times weights that are known.
  void product(const View& from, const Tensor& weights, const View& out);
  /// A register of the elements of `value`, as numbers, for all rows.
  View literal(const Tensor& value);
  View number(double value);
  /// A magnitude that no integer of `var` exceeds.
  double most_of(VarId var) const;
  /// Rows of i8 as they lie in a register of f32, four to an element, each row of the last axis on its own elements.
  void quantize(const Op& op);
  void matmul_int8(const Op& op);
  /// `weights`: W, R, bias, peepholes, or none. Without W the first input is x·W, and without R the second h·R.
  void lstm_cell(const Op& op, LstmDesc desc, const std::vector<VarId>& weights);
  /// An op that brings its own arithmetic (OpDef::prepare_rows).
  void function(const Op& op, const OpDef& def);
  /// A function of rows that a rule brings, with one output or two; all views are contiguous.
  void apply(RowFunction function, const std::vector<View>& from, const std::vector<View>& to);
  /// The operand of a view that is contiguous, or whose axes but the last merge.
  RowOperand rows_of(const View& view) const;
  RowOperand operand(const View& view) const { return {view.reg, view.begin, 0, 1}; }
  [[noreturn]] static void refuse(const Op& op, const std::string& why);
  /// Writes the elements of one view to another of the same extents.
  void copy(const View& from, const View& to);
  void emit(RowOp op) { desc_.ops.push_back(op); }

 private:
  void pack_last(const Tensor& weights);
  void emit_product(const View& from, std::int64_t k, std::int64_t n, const View& out);
  View elementwise_of(RowOp op, std::vector<View> views, const DDim& dims);
  void drop_copies();
  bool is_held(DType dtype) const;
  std::optional<double> most_given_by(const Op& op) const;
  void check_integers(const Op& op, VarId output);
  void bind_inputs();
  void bind_outputs();
  void eval_ops();
  void eval(const Op& op);
  void matrix_state(const MatrixStates::Member& member);
  std::optional<std::size_t> shared_input(VarId var) const;

  const Program& program_;
  RowKernel& made_;
  const RowKernel::Truth truth_;
  const bool coupled_;
  const bool plain_;
  RowDesc desc_;
  std::map<VarId, View> views_;
  std::map<VarId, View> quantized_;      // of i8: [rows of a row, elements of f32]
  std::map<VarId, std::size_t> shared_;  // var → place among the shared inputs
  std::map<VarId, double> most_;         // of integers that ops give: a magnitude that none exceeds
};

/// The rule of an op type, or null.
using RowRule = void (*)(RowCompiler&, const Op&);
RowRule find_row_rule(const std::string& type);

}  // namespace millrace
