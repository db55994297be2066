// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/scatter.h>
#include <millrace/kernels/sequence_top_k.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/copy.h>

/// Ops that pick elements by their places or their values.
namespace millrace::ops {
namespace {

OpDef op_of(const char* name, std::vector<std::string> inputs, std::vector<std::string> outputs, void (*infer)(InferContext&),
            std::vector<std::string> attributes = {}) {
  OpDef def = define(name, std::move(inputs), std::move(outputs), std::move(attributes));
  def.infer = infer;
  return def;
}

int int_attribute(const Attributes& attributes, const char* name, std::int64_t otherwise) {
  const std::int64_t value = attributes.get_or(name, otherwise);
  if (value < -max_rank || value > max_rank)
    throw ProgramError("attribute '" + std::string(name) + "': expected at most " + std::to_string(max_rank) + ", found " +
                       std::to_string(value));
  return static_cast<int>(value);
}

// ---- top_k ----

void infer_top_k(InferContext& context) {
  expect_index(context, 1);
  expect_scalar(context, 1);
  const VarType& x = context.tensor(0);
  std::optional<DDim> shape = x.shape;
  if (shape) {
    const auto k = constant_integers(context, 1);
    const int axis = checked_axis(int_attribute(context.attributes(), "axis", -1), shape->rank());
    const std::int64_t extent = (*shape)[axis];
    if (k && (k->at(0) < 0 || (extent != DDim::unknown && k->at(0) > extent)))
      throw ProgramError("expected k within axis " + std::to_string(axis) + " of " + context.describe(0) + ", found " +
                         std::to_string(k->at(0)));
    (*shape)[axis] = k ? k->at(0) : DDim::unknown;
  }
  context.result(tensor_type(x.dtype, shape));
  context.result(tensor_type(DType::i64, shape));
}

OpDef top_k_op() {
  OpDef def = op_of("top_k", {"X", "K"}, {"Values", "Index"}, infer_top_k, {"axis", "largest"});
  def.host_inputs = {1};
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = int_attribute(context.attributes(), "axis", -1);
    const bool largest = context.attributes().get_or("largest", true);
    return [axis, largest](OpContext& run) {
      TopK best = top_k(run.tensor(0), run.tensor(1).item_int(), axis, largest, run.stream());
      run.set(0, std::move(best.values));
      run.set(1, std::move(best.places));
    };
  };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[1] >= 0) refuse_rows("takes a number from the rows");
    if (axes[0] == checked_axis(int_attribute(context.attributes(), "axis", -1), known_rank(context, 0))) refuse_rows("sorts the rows");
    return {axes[0], axes[0]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) {
    expect_shared(v, op, 1, "k");
    vectorize_with(v, op, with(op.attributes, "axis", moved_axis(int_attribute(op.attributes, "axis", -1), v.rank(op.inputs[0]))));
  };
  return def;
}

// ---- non_zero ----

void infer_non_zero(InferContext& context) {
  const int rank = context.tensor(0).rank();
  context.result(VarType(DType::i64, DDim{rank < 0 ? DDim::unknown : rank, DDim::unknown}));
}

/// [rank, count], in row-major order of x.
Tensor places_of_non_zero(const Tensor& x) {
  const std::vector<bool> found = visit_dtype(x.dtype(), [&]<class T>(std::type_identity<T>) {
    std::vector<bool> set;
    for (const T value : x.to_vector<T>()) set.push_back(convert_element<double>(value) != 0);
    return set;
  });
  const auto count = static_cast<std::int64_t>(std::count(found.begin(), found.end(), true));
  Tensor places(DType::i64, DDim{x.rank(), count});
  auto* to = places.mutable_data<std::int64_t>();
  std::int64_t column = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) continue;
    auto rest = static_cast<std::int64_t>(i);
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
      to[axis * count + column] = rest % x.dim(axis);
      rest /= x.dim(axis);
    }
    ++column;
  }
  return places;
}

OpDef non_zero_op() {
  OpDef def = op_of("non_zero", {"X"}, {"Out"}, infer_non_zero);
  def.host_inputs = {0};
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      Tensor places = places_of_non_zero(run.tensor(0).copy_to(CpuPlace{}));
      if (run.stream().place().is_cpu()) return run.set(0, std::move(places));
      Tensor there(places.dtype(), places.dims(), run.stream().memory());
      copy(places, there, run.stream());
      run.set(0, std::move(there));
    };
  };
  def.follow_rows = follow_first([](const InferContext&, int) -> int { refuse_rows("gives as many places as its values say"); });
  def.vectorize = [](Vectorizer& v, const Op& op) { expect_shared(v, op, 0, "what decides how many elements there are"); };
  return def;
}

// ---- gather_nd, scatter_nd, scatter_elements ----

void infer_gather_nd(InferContext& context) {
  expect_index(context, 1);
  const VarType& x = context.tensor(0);
  const std::optional<DDim>& index = context.tensor(1).shape;
  const int batch_axes = int_attribute(context.attributes(), "batch_dims", 0);
  if (!x.shape || !index || index->rank() == 0 || (*index)[index->rank() - 1] == DDim::unknown)
    return context.result(VarType::unranked(x.dtype));
  context.result(VarType(x.dtype, gather_nd_dims(*x.shape, *index, batch_axes)));
}

/// Extent of the last axis of an index; UnsupportedError where it is not known.
int places_of(const InferContext& context) {
  const std::int64_t places = extent(context, 1, known_rank(context, 1) - 1);
  if (places == DDim::unknown) refuse_rows("has an index of unknown extent");
  return static_cast<int>(places);
}

std::vector<int> follow_gather_nd(const InferContext& context, const std::vector<int>& axes) {
  const int batch_axes = int_attribute(context.attributes(), "batch_dims", 0);
  const int lists = known_rank(context, 1) - 1;
  if (axes[0] >= 0 && axes[1] >= 0) {
    if (axes[0] != axes[1] || axes[0] >= batch_axes) refuse_rows("picks from the rows of one input by those of another");
    return {axes[0]};
  }
  if (axes[1] >= 0) {
    if (axes[1] < batch_axes || axes[1] == lists) refuse_rows("picks by the rows of its index");
    return {axes[1]};
  }
  const int picked = batch_axes + places_of(context);
  if (axes[0] < picked) refuse_rows("picks some of the rows");
  return {axes[0] - picked + lists};
}

void vectorize_gather_nd(Vectorizer& v, const Op& op) {
  const std::int64_t batch_axes = int_attribute(op.attributes, "batch_dims", 0);
  const bool shared = batch_axes == 0 && !v.batched(op.inputs[0]);
  const VarId like = any_batched_var(v, op);
  const VarId x = shared ? v.get(op.inputs[0]) : batched_var(v, op.inputs[0], like);
  const VarId index = batched_var(v, op.inputs[1], like);
  v.bind(op.outputs[0], v.emit("gather_nd", {x, index}, {{"batch_dims", shared ? std::int64_t{0} : batch_axes + 1}}).at(0), true);
}

OpDef gather_nd_op() {
  OpDef def = op_of("gather_nd", {"X", "Index"}, {"Out"}, infer_gather_nd, {"batch_dims"});
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int batch_axes = int_attribute(context.attributes(), "batch_dims", 0);
    return [batch_axes](OpContext& run) { run.set(0, gather_nd(run.tensor(0), run.tensor(1), batch_axes, run.stream())); };
  };
  def.follow_rows = follow_gather_nd;
  def.vectorize = vectorize_gather_nd;
  return def;
}

ScatterReduction reduction_of(const Attributes& attributes) {
  const std::string name = attributes.get_or("reduction", std::string("none"));
  const std::pair<const char*, ScatterReduction> known[] = {{"none", ScatterReduction::none},
                                                            {"add", ScatterReduction::add},
                                                            {"mul", ScatterReduction::mul},
                                                            {"min", ScatterReduction::min},
                                                            {"max", ScatterReduction::max}};
  for (const auto& [word, reduction] : known)
    if (name == word) return reduction;
  throw ProgramError("attribute 'reduction': expected none, add, mul, min or max, found '" + name + "'");
}

void infer_scatter(InferContext& context) {
  expect_index(context, 1);
  expect_same_dtype(context, 0, 2);
  reduction_of(context.attributes());
  context.result(tensor_type(context.tensor(0).dtype, context.tensor(0).shape));
}

/// Whole blocks move: rows may lie in what moves, on both sides.
std::vector<int> follow_scatter_nd(const InferContext& context, const std::vector<int>& axes) {
  if (axes[1] >= 0) refuse_rows("writes by the rows of its index");
  const int places = places_of(context);
  if (axes[0] < places || axes[2] != axes[0] - places + known_rank(context, 1) - 1) refuse_rows("writes some of the rows");
  return {axes[0]};
}

/// The number of the sequence is one more place, in front.
void vectorize_scatter_nd(Vectorizer& v, const Op& op) {
  const VarId like = any_batched_var(v, op);
  const VarId x = batched_var(v, op.inputs[0], like);
  VarId index = batched_var(v, op.inputs[1], like);
  const VarId updates = batched_var(v, op.inputs[2], like);
  const int rank = v.rank(op.inputs[1]);
  if (v.from().var(op.inputs[1]).type.dtype != DType::i64) index = v.emit("cast", {index}, {{"to", DType::i64}}).at(0);
  const VarId n = v.emit("reshape", {extents(v, x, 0, 1)}, {{"shape", Ints{}}}).at(0);
  const VarId numbers = v.emit("range", {scalar_literal(v, 0), n, scalar_literal(v, 1)}).at(0);
  Ints aside(static_cast<std::size_t>(rank) + 1, 1);
  aside[0] = -1;
  const VarId column = v.emit("reshape", {numbers}, {{"shape", aside}}).at(0);
  const VarId everywhere = v.emit("expand", {column, joined(v, {extents(v, index, 0, rank), literal(v, {1})})}).at(0);
  const VarId places = v.emit("concat", {everywhere, index}, {{"axis", std::int64_t{-1}}}).at(0);
  v.bind(op.outputs[0], v.emit("scatter_nd", {x, places, updates}, op.attributes).at(0), true);
}

OpDef scatter_nd_op() {
  OpDef def = op_of("scatter_nd", {"X", "Index", "Updates"}, {"Out"}, infer_scatter, {"reduction"});
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const ScatterReduction reduction = reduction_of(context.attributes());
    return [reduction](OpContext& run) { run.set(0, scatter_nd(run.tensor(0), run.tensor(1), run.tensor(2), reduction, run.stream())); };
  };
  def.follow_rows = follow_scatter_nd;
  def.vectorize = vectorize_scatter_nd;
  return def;
}

OpDef scatter_elements_op() {
  OpDef def = op_of("scatter_elements", {"X", "Index", "Updates"}, {"Out"}, infer_scatter, {"axis", "reduction"});
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const ScatterReduction reduction = reduction_of(context.attributes());
    const int axis = int_attribute(context.attributes(), "axis", 0);
    return [reduction, axis](OpContext& run) {
      run.set(0, scatter_elements(run.tensor(0), run.tensor(1), run.tensor(2), axis, reduction, run.stream()));
    };
  };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[0] < 0 || axes[1] != axes[0] || axes[2] != axes[0]) refuse_rows("writes by rows that are not those of all its inputs");
    if (axes[0] == checked_axis(int_attribute(context.attributes(), "axis", 0), known_rank(context, 0)))
      refuse_rows("writes some of the rows");
    return {axes[0]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) {
    const VarId like = any_batched_var(v, op);
    std::vector<VarId> inputs;
    for (const VarId input : op.inputs) inputs.push_back(batched_var(v, input, like));
    const std::int64_t axis = moved_axis(int_attribute(op.attributes, "axis", 0), v.rank(op.inputs[0]));
    v.bind(op.outputs[0], v.emit("scatter_elements", inputs, with(op.attributes, "axis", axis)).at(0), true);
  };
  return def;
}

}  // namespace

void add_pick_ops(OpRegistry& registry) {
  registry.add(top_k_op());
  registry.add(non_zero_op());
  registry.add(gather_nd_op());
  registry.add(scatter_nd_op());
  registry.add(scatter_elements_op());
  add_pick_gradients(registry);
}

}  // namespace millrace::ops
