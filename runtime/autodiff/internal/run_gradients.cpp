// SPDX-License-Identifier: Apache-2.0
// The gradients of the ops of which runs_backward makes its loops: those loops have gradients like any other.
#include <millrace/runtime/autodiff/internal/block_backward.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::autodiff {

bool BlockBackward::visit_runs(const Op& op) {
  if (op.type == "whole_blocks") return visit_whole_blocks(op), true;
  if (op.type == "add_row_products") return visit_row_products(op), true;
  if (op.type != "sequence_run" && op.type != "sequence_run_gradient") return false;
  const VarId given = sum(op.outputs[0]);
  if (given == no_var || !active(op.inputs[0])) return true;
  if (op.type == "sequence_run")
    add(op.inputs[0], emit1(program(), "sequence_run_gradient", {given, op.inputs[0], op.inputs[1], op.inputs[2]}, op.attributes));
  else
    add(op.inputs[0],
        emit1(program(), "sequence_run", {with_lod_of(program(), given, op.inputs[1]), op.inputs[2], op.inputs[3]}, op.attributes));
  return true;
}

/// Left and Rows stand one behind the other in Blocks and Rest.
void BlockBackward::visit_whole_blocks(const Op& op) {
  if (!has(op.outputs[0]) && !has(op.outputs[1])) return;
  const auto given = [&](VarId output) { return has(output) ? sum(output) : zeros_like(program(), output); };
  const auto extent = [&](VarId x) {
    return emit1(program(), "shape", {without_lod(program(), x)}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
  };
  const auto numbers = [&](std::int64_t value) {
    return emit1(program(), "constant", {}, {{"value", Tensor::from(std::vector<std::int64_t>{value}, DDim{1})}});
  };
  const VarId all = emit1(program(), "concat", {given(op.outputs[0]), given(op.outputs[1])}, {{"axis", std::int64_t{0}}});
  const auto piece = [&](VarId begin, VarId end) { return emit1(program(), "slice_by", {all, begin, end, numbers(0)}); };
  const VarId left = extent(op.inputs[0]);
  if (active(op.inputs[0])) add(op.inputs[0], piece(numbers(0), left));
  if (active(op.inputs[1])) add(op.inputs[1], piece(left, extent(all)));
}

/// Sum + Aᵀ·B, or Sum + the sum of the rows of B.
void BlockBackward::visit_row_products(const Op& op) {
  const VarId given = sum(op.outputs[0]);
  if (given == no_var) return;
  const VarId b = op.inputs[1], a = op.inputs.size() > 2 ? op.inputs[2] : no_var;
  if (active(op.inputs[0])) add(op.inputs[0], given);
  if (active(b))
    add(b, a == no_var ? emit1(program(), "add", {zeros_like(program(), b), given})
                       : emit1(program(), "matmul", {without_lod(program(), a), given}));
  if (a != no_var && active(a)) add(a, emit1(program(), "gemm", {without_lod(program(), b), given}, {{"trans_b", true}}));
}

}  // namespace millrace::autodiff
