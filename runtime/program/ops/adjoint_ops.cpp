// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/fill.h>
#include <millrace/kernels/reduce.h>
#include <millrace/kernels/slice.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/ops/internal/sequences.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/sequence_plan.h>

/// Ops that gradients are made of.
namespace millrace::ops {
namespace {

// ---- sum_to ----

[[noreturn]] void refuse_sum(const std::string& x, const std::string& like) {
  throw ShapeError("sum_to: expected extents that the second input broadcasts to, found " + x + " and " + like);
}

void infer_sum_to(InferContext& context) {
  const VarType& x = context.tensor(0);
  const VarType& like = context.tensor(1);
  expect_float(context, 0);
  if (x.shape && like.shape) {
    const int shift = x.rank() - like.rank();
    if (shift < 0) refuse_sum(context.describe(0), context.describe(1));
    for (int axis = 0; axis < like.rank(); ++axis) {
      const std::int64_t from = (*x.shape)[axis + shift], to = (*like.shape)[axis];
      if (from != to && to != 1 && from != DDim::unknown && to != DDim::unknown) refuse_sum(context.describe(0), context.describe(1));
    }
  }
  context.result(tensor_type(x.dtype, like.shape));
}

Tensor summed_to(const Tensor& x, const DDim& dims, StreamRef stream) {
  const int shift = x.rank() - dims.rank();
  if (shift < 0) refuse_sum(x.dims().to_string(), dims.to_string());
  std::vector<int> axes;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const std::int64_t wanted = axis < shift ? 1 : dims[axis - shift];
    if (axis < shift || x.dim(axis) != wanted) axes.push_back(axis);
    if (axis >= shift && wanted != x.dim(axis) && wanted != 1) refuse_sum(x.dims().to_string(), dims.to_string());
  }
  if (axes.empty()) return x;
  return reduce(Reduction::sum, x, axes, true, stream).reshape(dims);
}

std::vector<int> follow_sum_to(const InferContext& context, const std::vector<int>& axes) {
  if (axes[0] < 0 && axes[1] < 0) return {-1};
  if (axes[0] >= 0 && axes[1] >= 0 && axes[1] == axes[0] - (known_rank(context, 0) - known_rank(context, 1))) return {axes[1]};
  refuse_rows(axes[0] >= 0 ? "sums over the rows" : "repeats for each row");
}

void vectorize_sum_to(Vectorizer& v, const Op& op) {
  const VarId like_all = any_batched_var(v, op);
  const VarId x = batched_var(v, op.inputs[0], like_all);
  const VarId like = batched_var(v, op.inputs[1], like_all);
  // Ones behind N, so that the other axes meet those of X.
  Ints between;
  for (int axis = v.rank(op.inputs[1]); axis < v.rank(op.inputs[0]); ++axis)
    between.push_back(static_cast<std::int64_t>(between.size()) + 1);
  if (between.empty()) return v.bind(op.outputs[0], v.emit("sum_to", {x, like}).at(0), true);
  const VarId aligned = v.emit("unsqueeze", {like}, {{"axes", between}}).at(0);
  const VarId sum = v.emit("sum_to", {x, aligned}).at(0);
  v.bind(op.outputs[0], v.emit("squeeze", {sum}, {{"axes", between}}).at(0), true);
}

OpDef sum_to_op() {
  OpDef def = define("sum_to", {"X", "Like"}, {"Out"});
  def.infer = infer_sum_to;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) { run.set(0, summed_to(run.tensor(0), run.tensor(1).dims(), run.stream())); };
  };
  def.follow_rows = follow_sum_to;
  def.vectorize = vectorize_sum_to;
  def.gradient = [](GradientContext& c) { set(c, 0, call("expand", {gradient(c), shape_of(value(c, 0))})); };
  return def;
}

// ---- put_slice ----

/// The part of `out` that the attributes name.
Tensor slice_of(const Tensor& out, const Attributes& attributes) {
  const Ints& axes = attributes.get<Ints>("axes");
  return slice_view(out, attributes.get<Ints>("starts"), attributes.get<Ints>("ends"), std::vector<int>(axes.begin(), axes.end()),
                    attributes.get<Ints>("steps"));
}

void infer_put_slice(InferContext& context) {
  expect_same_dtype(context, 0, 1);
  const std::size_t count = context.attributes().get<Ints>("axes").size();
  for (const char* name : {"starts", "ends", "steps"})
    if (context.attributes().get<Ints>(name).size() != count)
      throw ProgramError("attribute '" + std::string(name) + "': expected a number for each of " + std::to_string(count) + " axes, found " +
                         list_text(context.attributes().get<Ints>(name)));
  const VarType& x = context.tensor(0);
  if (x.shape) checked_axes(context.attributes().get<Ints>("axes"), x.rank());
  context.result(tensor_type(x.dtype, x.shape));
}

OpDef put_slice_op() {
  OpDef def = define("put_slice", {"X", "Updates"}, {"Out"}, {"starts", "ends", "axes", "steps"});
  def.infer = infer_put_slice;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      const Tensor& x = run.tensor(0);
      Tensor out(x.dtype(), x.dims(), run.stream().memory());
      copy(x, out, run.stream());
      Tensor part = slice_of(out, run.op().attributes);
      if (part.dims() != run.tensor(1).dims())
        throw ShapeError("put_slice: expected updates of " + part.dims().to_string() + ", found " + run.tensor(1).to_string());
      copy(run.tensor(1), part, run.stream());
      run.set(0, std::move(out));
    };
  };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[0] < 0 && axes[1] < 0) return {-1};
    if (axes[0] != axes[1]) refuse_rows("writes by rows that are not those of both inputs");
    for (const int axis : checked_axes(context.attributes().get<Ints>("axes"), known_rank(context, 0)))
      if (axis == axes[0]) refuse_rows("writes some of the rows");
    return {axes[0]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) {
    const VarId like = any_batched_var(v, op);
    const VarId x = batched_var(v, op.inputs[0], like);
    const VarId updates = batched_var(v, op.inputs[1], like);
    Attributes moved = with(op.attributes, "axes", moved_axes(op.attributes.get<Ints>("axes"), v.rank(op.inputs[0])));
    v.bind(op.outputs[0], v.emit("put_slice", {x, updates}, std::move(moved)).at(0), true);
  };
  def.gradient = [](GradientContext& c) {
    const Attributes form = c.op().attributes;
    if (c.wants(1)) set(c, 1, call("slice", {gradient(c)}, form));
    if (c.wants(0)) set(c, 0, call("put_slice", {gradient(c), zeros_like(value(c, 1))}, form));
  };
  return def;
}

// ---- row_numbers, window_rows ----

void infer_row_numbers(InferContext& context) {
  if (context.tensor(0).rank() == 0) throw ProgramError("expected rows, found " + context.describe(0));
  context.result(VarType(DType::i64, DDim{extent(context, 0, 0)}, context.tensor(0).lod_depth));
}

OpKernel prepare_row_numbers(const PrepareContext&) {
  return [](OpContext& run) { run.set(0, LoDTensor(arange(run.tensor(0).dim(0), DType::i64, run.stream()), run.lod(0))); };
}

void infer_window_rows(InferContext& context) {
  const std::int64_t length = context.attributes().get<std::int64_t>("context_length");
  context.attributes().get<std::int64_t>("context_start");
  if (length < 1) throw ProgramError("attribute 'context_length': expected 1 or more, found " + std::to_string(length));
  context.result(VarType(DType::i64, DDim{extent(context, 0, 0), length}, expect_lod(context, 0)));
}

OpKernel prepare_window_rows(const PrepareContext& context) {
  const auto start = context.attributes().get<std::int64_t>("context_start");
  const auto length = context.attributes().get<std::int64_t>("context_length");
  return [start, length](OpContext& run) {
    const SequencePlan plan = make_bordered_window_plan(run.lod(0), start, length);
    run.set(0, LoDTensor(list_on(plan.rows, run.stream()).reshape(DDim{run.tensor(0).dim(0), length}), run.lod(0)));
  };
}

}  // namespace

void add_adjoint_ops(OpRegistry& registry) {
  registry.add(sum_to_op());
  registry.add(put_slice_op());
  registry.add(sequence_op("row_numbers", {"X"}, {"Out"}, infer_row_numbers, prepare_row_numbers, "numbers all rows"));
  registry.add(sequence_op("window_rows", {"X"}, {"Out"}, infer_window_rows, prepare_window_rows, "names the rows around each row",
                           {"context_start", "context_length"}));
  registry.cut_gradients({"row_numbers", "window_rows"});
}

}  // namespace millrace::ops
