// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/gather.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

/// `embedding` is a gather along axis 0.
std::int64_t gather_axis(const Attributes& attributes) { return attributes.get_or("axis", std::int64_t{0}); }

void infer_gather(InferContext& context) {
  expect_index(context, 1);
  const VarType& x = context.tensor(0);
  const VarType& index = context.tensor(1);
  const int axis = x.shape ? checked_axis(gather_axis(context.attributes()), x.rank()) : 0;
  if (!x.shape || !index.shape) return context.result(VarType::unranked(x.dtype));
  DDim shape = x.shape->erased(axis);
  for (int at = 0; at < index.rank(); ++at) shape = shape.inserted(axis + at, (*index.shape)[at]);
  context.result(VarType(x.dtype, shape));
}

std::vector<int> follow_gather(const InferContext& context, const std::vector<int>& axes) {
  if (axes[0] < 0 && axes[1] < 0) return {-1};
  if (axes[0] >= 0 && axes[1] >= 0) refuse_rows("picks from the rows of one input by those of another");
  const int axis = checked_axis(gather_axis(context.attributes()), known_rank(context, 0));
  if (axes[1] >= 0) return {axis + axes[1]};
  if (axes[0] == axis) refuse_rows("picks some of the rows");
  return {axes[0] < axis ? axes[0] : axes[0] - 1 + known_rank(context, 1)};
}

/// The same table for all: the index has the leading axis, which then comes first.
void gather_shared(Vectorizer& v, const Op& op, int axis) {
  VarId picked = v.emit("gather", {v.get(op.inputs[0]), v.get(op.inputs[1])}, {{"axis", std::int64_t{axis}}}).at(0);
  if (axis > 0) {
    const int rank = v.rank(op.inputs[0]) + v.rank(op.inputs[1]);
    Ints perm{axis};
    for (int at = 0; at < rank; ++at)
      if (at != axis) perm.push_back(at);
    picked = v.emit("transpose", {picked}, {{"perm", perm}}).at(0);
  }
  v.bind(op.outputs[0], picked, true);
}

/// A table and an index for each sequence: gather_elements, whose index is checked against the sequence's own extent.
void gather_each(Vectorizer& v, const Op& op, int axis) {
  const VarId x = v.get(op.inputs[0]);
  const int rank = v.rank(op.inputs[0]);
  const int places = v.rank(op.inputs[1]);
  const VarId index = v.get(op.inputs[1]);
  const VarId n = extents(v, x, 0, 1);
  const VarId told = extents(v, index, 1, places + 1);
  const VarId count = v.emit("reduce", {told}, {{"kind", std::string("prod")}, {"axes", Ints{0}}, {"keepdims", true}}).at(0);
  // [N, 1 …, J, 1 …], stretched over the other axes of the table.
  std::vector<VarId> aside{n, literal(v, Ints(static_cast<std::size_t>(axis), 1)), count,
                           literal(v, Ints(static_cast<std::size_t>(rank - 1 - axis), 1))};
  const VarId column = v.emit("reshape_to", {index, joined(v, aside)}, {{"allowzero", true}}).at(0);
  const VarId over = joined(v, {extents(v, x, 0, axis + 1), literal(v, {1}), extents(v, x, axis + 2, rank + 1)});
  const VarId stretched = v.emit("expand", {column, over}).at(0);
  const VarId picked = v.emit("gather_elements", {x, stretched}, {{"axis", std::int64_t{axis + 1}}}).at(0);
  const VarId wanted = joined(v, {extents(v, x, 0, axis + 1), told, extents(v, x, axis + 2, rank + 1)});
  v.bind(op.outputs[0], v.emit("reshape_to", {picked, wanted}, {{"allowzero", true}}).at(0), true);
}

void vectorize_gather(Vectorizer& v, const Op& op) {
  const int axis = checked_axis(gather_axis(op.attributes), v.rank(op.inputs[0]));
  if (!v.batched(op.inputs[0])) return gather_shared(v, op, axis);
  if (v.batched(op.inputs[1])) return gather_each(v, op, axis);
  v.bind(op.outputs[0], v.emit("gather", {v.get(op.inputs[0]), v.get(op.inputs[1])}, {{"axis", std::int64_t{axis + 1}}}).at(0), true);
}

OpDef gather_op(const char* name, const char* from, std::vector<std::string> attributes) {
  OpDef def = define(name, {from, "Index"}, {"Out"}, std::move(attributes));
  def.infer = infer_gather;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(gather_axis(context.attributes()));
    const Tensor* index = context.constant(1);
    if (index == nullptr || index->rank() > 0)
      return [axis](OpContext& run) { run.set(0, gather(run.tensor(0), run.tensor(1), axis, run.stream())); };
    // One item: a view, copied.
    return [axis, item = index->item_int()](OpContext& run) {
      const Tensor& x = run.tensor(0);
      const std::int64_t extent = x.rank() == 0 ? 0 : x.dim(x.dims().checked_axis(axis)), at = item < 0 ? item + extent : item;
      const bool inside = x.place().is_cpu() && at >= 0 && at < extent;
      run.set(0, inside ? clone(x.select(x.dims().checked_axis(axis), at), run.stream()) : gather(x, run.tensor(1), axis, run.stream()));
    };
  };
  def.follow_rows = follow_gather;
  def.vectorize = vectorize_gather;
  return def;
}

void infer_gather_elements(InferContext& context) {
  expect_index(context, 1);
  const VarType& x = context.tensor(0);
  const VarType& index = context.tensor(1);
  if (x.shape && index.shape && x.rank() != index.rank())
    throw ProgramError("expected an index of rank " + std::to_string(x.rank()) + ", found " + context.describe(1));
  if (x.shape) {
    const int axis = checked_axis(gather_axis(context.attributes()), x.rank());
    for (int at = 0; index.shape && at < x.rank(); ++at)
      if (at != axis && (*x.shape)[at] != DDim::unknown && (*index.shape)[at] > (*x.shape)[at])
        throw ProgramError("expected an index within " + context.describe(0) + ", found " + context.describe(1));
  }
  context.result(tensor_type(x.dtype, index.shape));
}

std::vector<int> follow_elements(const InferContext& context, const std::vector<int>& axes) {
  const int axis = checked_axis(gather_axis(context.attributes()), known_rank(context, 0));
  const std::vector<int> followed = follow_elementwise(context, axes);
  if (followed[0] == axis) refuse_rows("picks some of the rows");
  return followed;
}

OpDef gather_elements_op() {
  OpDef def = define("gather_elements", {"X", "Index"}, {"Out"}, {"axis"});
  def.infer = infer_gather_elements;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(gather_axis(context.attributes()));
    return [axis](OpContext& run) { run.set(0, gather_elements(run.tensor(0), run.tensor(1), axis, run.stream())); };
  };
  def.follow_rows = follow_elements;
  def.vectorize = [](Vectorizer& v, const Op& op) {
    const VarId like = any_batched_var(v, op);
    const std::int64_t axis = moved_axis(gather_axis(op.attributes), v.rank(op.inputs[0]));
    const VarId x = batched_var(v, op.inputs[0], like);
    const VarId index = batched_var(v, op.inputs[1], like);
    v.bind(op.outputs[0], v.emit("gather_elements", {x, index}, {{"axis", axis}}).at(0), true);
  };
  return def;
}

// ---- gather_planes: two gathers, made when a program is compiled (lowering/join_gathers.h)

void infer_gather_planes(InferContext& context) {
  const VarType& x = context.tensor(0);
  std::optional<DDim> shape = x.shape;
  if (shape && shape->rank() < 2) throw ProgramError("expected two axes or more, found " + context.describe(0));
  for (std::size_t input = 1; input < 3; ++input) {
    expect_index(context, input);
    const VarType& index = context.tensor(input);
    if (index.shape && index.rank() != 1) throw ProgramError("expected an index of one axis, found " + context.describe(input));
    if (shape) (*shape)[shape->rank() - 3 + static_cast<int>(input)] = index.shape ? (*index.shape)[0] : DDim::unknown;
  }
  context.result(tensor_type(x.dtype, shape));
}

OpDef gather_planes_op() {
  OpDef def = define("gather_planes", {"X", "Rows", "Columns"}, {"Out"}, {});
  def.infer = infer_gather_planes;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) { run.set(0, gather_planes(run.tensor(0), run.tensor(1), run.tensor(2), run.stream())); };
  };
  set_made_for_runs(def);
  return def;
}

// ---- gather_sum: sums of weighted gathers, made when a program is compiled (lowering/join_gathers.h)

void infer_gather_sum(InferContext& context) {
  const VarType& x = context.tensor(0);
  expect_float(context, 0);
  if (context.inputs() < 3 || context.inputs() % 2 == 0) throw ProgramError("expected places and weights of at least one term");
  std::optional<DDim> shape = x.shape;
  for (std::size_t input = 1; input < context.inputs(); input += 2) {
    expect_index(context, input);
    expect_rank(context, input, 1);
    expect_same_dtype(context, 0, input + 1);
  }
  if (shape) (*shape)[checked_axis(context.attributes().get<std::int64_t>("axis"), shape->rank())] = extent(context, 1, 0);
  context.result(tensor_type(x.dtype, shape));
}

OpDef gather_sum_op() {
  OpDef def = define("gather_sum", {"X", "Terms..."}, {"Out"}, {"axis"});
  def.infer = infer_gather_sum;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    return [axis = static_cast<int>(context.attributes().get<std::int64_t>("axis"))](OpContext& run) {
      std::vector<GatherTerm> terms;
      for (std::size_t input = 1; input + 1 < run.inputs(); input += 2) terms.push_back({run.tensor(input), run.tensor(input + 1)});
      run.set(0, gather_sum(run.tensor(0), terms, axis, run.stream()));
    };
  };
  set_made_for_runs(def);
  return def;
}

}  // namespace

void add_gather_ops(OpRegistry& registry) {
  registry.add(gather_op("gather", "X", {"axis"}));
  registry.add(gather_op("embedding", "Table", {}));
  registry.add(gather_elements_op());
  registry.add(gather_planes_op());
  registry.add(gather_sum_op());
  add_gather_gradients(registry);
}

}  // namespace millrace::ops
