// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cumsum.h>
#include <millrace/kernels/layer_norm.h>
#include <millrace/kernels/layer_norm_gradient.h>
#include <millrace/kernels/softmax.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>

namespace millrace::ops {
namespace {

std::int64_t axis_of(const Attributes& attributes, std::int64_t otherwise) { return attributes.get_or("axis", otherwise); }

void same_type(InferContext& context) { context.result(tensor_type(context.tensor(0).dtype, context.tensor(0).shape)); }

/// A rule for ops along one axis that keep all extents.
RowRule refuse_axis(std::int64_t otherwise, const char* reason) {
  return follow_first([otherwise, reason](const InferContext& context, int axis) {
    if (axis == checked_axis(axis_of(context.attributes(), otherwise), known_rank(context, 0))) refuse_rows(reason);
    return axis;
  });
}

auto move_axis(std::int64_t otherwise) {
  return [otherwise](Vectorizer& v, const Op& op) {
    const std::int64_t axis = moved_axis(axis_of(op.attributes, otherwise), v.rank(op.inputs[0]));
    vectorize_with(v, op, with(op.attributes, "axis", axis));
  };
}

OpDef softmax_op(const char* name, Tensor (*kernel)(const Tensor&, int, StreamRef)) {
  OpDef def = define(name, {"X"}, {"Out"}, {"axis"});
  def.infer = [](InferContext& context) {
    expect_float(context, 0);
    if (context.tensor(0).shape) checked_axis(axis_of(context.attributes(), -1), context.tensor(0).rank());
    same_type(context);
  };
  def.prepare = [kernel](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(axis_of(context.attributes(), -1));
    return [kernel, axis](OpContext& run) { run.set(0, kernel(run.tensor(0), axis, run.stream())); };
  };
  def.follow_rows = refuse_axis(-1, "normalises over the rows");
  def.vectorize = move_axis(-1);
  return def;
}

void infer_layer_norm(InferContext& context) {
  expect_float(context, 0);
  same_type(context);
  const std::optional<DDim>& x = context.tensor(0).shape;
  const int axis = x ? checked_axis(axis_of(context.attributes(), -1), x->rank()) : 0;
  for (const std::size_t input : {std::size_t{1}, std::size_t{2}}) {
    if (!context.has(input)) continue;
    expect_same_dtype(context, 0, input);
    const std::optional<DDim>& scale = context.tensor(input).shape;
    if (!x || !scale) continue;
    const auto refuse = [&] {
      throw ProgramError("expected input " + std::to_string(input) + " to broadcast to " + x->slice(axis, x->rank()).to_string() +
                         ", found " + context.describe(input));
    };
    if (scale->rank() > x->rank() - axis) refuse();
    for (int at = -1; at >= -scale->rank(); --at)
      if ((*scale)[at] != 1 && (*scale)[at] != (*x)[at] && (*scale)[at] != DDim::unknown && (*x)[at] != DDim::unknown) refuse();
  }
}

OpDef layer_norm_op() {
  OpDef def = define("layer_norm", {"X", "Scale", "Bias?"}, {"Out"}, {"axis", "epsilon"});
  def.infer = infer_layer_norm;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(axis_of(context.attributes(), -1));
    const double epsilon = context.attributes().get_or("epsilon", 1e-5);
    return [axis, epsilon](OpContext& run) {
      const Tensor* bias = run.has(2) ? &run.tensor(2) : nullptr;
      run.set(0, layer_norm(run.tensor(0), run.tensor(1), bias, axis, epsilon, run.stream()));
    };
  };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    if (axis >= checked_axis(axis_of(context.attributes(), -1), known_rank(context, 0))) refuse_rows("normalises over the rows");
    return axis;
  });
  def.vectorize = [](Vectorizer& v, const Op& op) {
    expect_shared(v, op, 1, "a scale");
    expect_shared(v, op, 2, "a bias");
    move_axis(-1)(v, op);
  };
  return def;
}

OpDef layer_norm_gradient_op() {
  OpDef def = define("layer_norm_gradient", {"X", "Scale", "Gradient"}, {"Out", "Rows"}, {"axis", "epsilon"});
  def.infer = [](InferContext& context) {
    expect_float(context, 0);
    expect_same_dtype(context, 0, 1);
    expect_same_dtype(context, 0, 2);
    const VarType &x = context.tensor(0), &g = context.tensor(2);
    if (x.shape) checked_axis(axis_of(context.attributes(), -1), x.rank());
    if (x.shape && g.shape) {
      expect_rank(context, 2, x.rank());
      for (int axis = 0; axis < x.rank(); ++axis) expect_extent(context, 2, axis, (*x.shape)[axis]);
    }
    same_type(context);
    same_type(context);
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(axis_of(context.attributes(), -1));
    const double epsilon = context.attributes().get_or("epsilon", 1e-5);
    return [axis, epsilon](OpContext& run) {
      LayerNormGradient made = layer_norm_gradient(run.tensor(0), run.tensor(1), run.tensor(2), axis, epsilon, run.stream());
      run.set(0, std::move(made.x));
      run.set(1, std::move(made.rows));
    };
  };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[0] < 0 && axes[1] < 0 && axes[2] < 0) return {-1, -1};
    if (axes[1] >= 0 || axes[0] != axes[2]) refuse_rows("has rows that are not those of both inputs");
    if (axes[0] >= checked_axis(axis_of(context.attributes(), -1), known_rank(context, 0))) refuse_rows("normalises over the rows");
    return {axes[0], axes[0]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) {
    expect_shared(v, op, 1, "a scale");
    const VarId like = any_batched_var(v, op);
    const VarId x = batched_var(v, op.inputs[0], like), g = batched_var(v, op.inputs[2], like);
    Attributes moved = with(op.attributes, "axis", moved_axis(axis_of(op.attributes, -1), v.rank(op.inputs[0])));
    v.bind_all(op.outputs, v.emit(op.type, {x, v.get(op.inputs[1]), g}, std::move(moved)), true);
  };
  return def;
}

RowFunction cumsum_of_rows(const PrepareContext& context, const RowForm& form) {
  const DDim& row = form.inputs.at(0);
  const int axis = checked_axis(axis_of(context.attributes(), 0), row.rank() + 1) - 1;
  if (axis < 0) throw UnsupportedError("adds up the rows");
  CumsumRows sums;
  sums.dtype = form.dtype;
  sums.outer = row.slice(0, axis).elements();
  sums.n = row[axis];
  sums.inner = row.slice(axis + 1, row.rank()).elements();
  sums.exclusive = context.attributes().get_or("exclusive", false);
  sums.reverse = context.attributes().get_or("reverse", false);
  return cumsum_rows(sums);
}

OpDef cumsum_op() {
  OpDef def = define("cumsum", {"X"}, {"Out"}, {"axis", "exclusive", "reverse"});
  def.infer = [](InferContext& context) {
    if (context.tensor(0).dtype == DType::boolean)
      throw ProgramError("expected numbers as " + millrace::internal::input_name(context.program(), context.op(), 0) + ", found " +
                         context.describe(0));
    if (context.tensor(0).shape) checked_axis(axis_of(context.attributes(), 0), context.tensor(0).rank());
    same_type(context);
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(axis_of(context.attributes(), 0));
    const bool exclusive = context.attributes().get_or("exclusive", false);
    const bool reverse = context.attributes().get_or("reverse", false);
    return [axis, exclusive, reverse](OpContext& run) { run.set(0, cumsum(run.tensor(0), axis, exclusive, reverse, run.stream())); };
  };
  def.prepare_rows = cumsum_of_rows;
  def.follow_rows = refuse_axis(0, "adds up the rows");
  def.vectorize = move_axis(0);
  return def;
}

}  // namespace

void add_normalize_ops(OpRegistry& registry) {
  registry.add(softmax_op("softmax", softmax));
  registry.add(softmax_op("log_softmax", log_softmax));
  registry.add(layer_norm_op());
  registry.add(layer_norm_gradient_op());
  registry.add(cumsum_op());
  add_normalize_gradients(registry);
}

}  // namespace millrace::ops
