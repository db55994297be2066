// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <millrace/kernels/transpose.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

// ---- shape, size ----

/// The axes [first, second) that `shape` tells, by ONNX's rules: negative places count from the end, places outside are
/// clamped.
std::pair<int, int> told_axes(const Attributes& attributes, int rank) {
  const auto place = [rank](std::int64_t at) { return static_cast<int>(std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank)); };
  const int begin = place(attributes.get_or("start", std::int64_t{0}));
  return {begin, std::max(begin, place(attributes.get_or("end", std::int64_t{rank})))};
}

void infer_shape(InferContext& context) {
  const int rank = context.tensor(0).rank();
  if (rank < 0) return context.result(VarType(DType::i64, DDim{DDim::unknown}));
  const auto [begin, end] = told_axes(context.attributes(), rank);
  context.result(VarType(DType::i64, DDim{end - begin}));
}

void run_shape(OpContext& context) {
  const DDim& dims = context.tensor(0).dims();
  const auto [begin, end] = told_axes(context.op().attributes, dims.rank());
  context.set(0, Tensor::from(Ints(dims.begin() + begin, dims.begin() + end), DDim{end - begin}));
}

/// The extents of one sequence are those of all.
void vectorize_shape(Vectorizer& v, const Op& op) {
  const VarType& type = v.from().var(op.inputs[0]).type;
  const auto [begin, end] = told_axes(op.attributes, v.rank(op.inputs[0]));
  const Ints told(type.shape->begin() + begin, type.shape->begin() + end);
  const bool known = std::find(told.begin(), told.end(), DDim::unknown) == told.end();
  const VarId made = known ? literal(v, told) : extents(v, v.get(op.inputs[0]), begin + 1, end + 1);
  v.bind(op.outputs[0], made, false);
}

OpDef shape_op() {
  OpDef def = define("shape", {"X"}, {"Out"}, {"start", "end"});
  def.infer = infer_shape;
  def.prepare = [](const PrepareContext&) -> OpKernel { return run_shape; };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    const auto [begin, end] = told_axes(context.attributes(), known_rank(context, 0));
    if (axis >= begin && axis < end) refuse_rows("tells how many rows there are");
    return -1;
  });
  def.vectorize = vectorize_shape;
  return def;
}

void vectorize_size(Vectorizer& v, const Op& op) {
  const VarType& type = v.from().var(op.inputs[0]).type;
  const int rank = v.rank(op.inputs[0]);
  const std::int64_t count = product_of(*type.shape, 0, rank);
  if (count != DDim::unknown) return v.bind(op.outputs[0], scalar_literal(v, count), false);
  const VarId told = extents(v, v.get(op.inputs[0]), 1, rank + 1);
  const VarId made = v.emit("reduce", {told}, {{"kind", std::string("prod")}, {"axes", Ints{0}}, {"keepdims", false}}).at(0);
  v.bind(op.outputs[0], made, false);
}

OpDef size_op() {
  OpDef def = define("size", {"X"}, {"Out"});
  def.infer = [](InferContext& context) {
    context.tensor(0);
    context.result(VarType(DType::i64, DDim{}));
  };
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& context) { context.set(0, Tensor::scalar(context.tensor(0).elements())); };
  };
  def.follow_rows = follow_first([](const InferContext&, int) -> int { refuse_rows("tells how many elements the rows have"); });
  def.vectorize = vectorize_size;
  return def;
}

// ---- transpose ----

std::vector<int> permutation(const Attributes& attributes, int rank) {
  const Ints wanted = attributes.get_or("perm", Ints{});
  if (wanted.empty()) {
    std::vector<int> reversed(static_cast<std::size_t>(rank));
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    return reversed;
  }
  if (wanted.size() != static_cast<std::size_t>(rank))
    throw ProgramError("expected a perm of " + std::to_string(rank) + " axes, found " + list_text(wanted));
  return checked_axes(wanted, rank);
}

void infer_transpose(InferContext& context) {
  const VarType& x = context.tensor(0);
  if (!x.shape) return context.result(VarType::unranked(x.dtype));
  DDim shape;
  for (const int axis : permutation(context.attributes(), x.rank())) shape = shape.inserted(shape.rank(), (*x.shape)[axis]);
  context.result(VarType(x.dtype, shape));
}

/// A view where only axes of one element move, else a copy.
void run_transpose(const std::vector<int>& axes, OpContext& context) {
  Tensor view = context.tensor(0).permute(axes);
  context.set(0, view.is_contiguous() ? std::move(view) : transpose(context.tensor(0), axes, context.stream()));
}

void vectorize_transpose(Vectorizer& v, const Op& op) {
  Ints perm{0};
  for (const int axis : permutation(op.attributes, v.rank(op.inputs[0]))) perm.push_back(axis + 1);
  vectorize_with(v, op, with(op.attributes, "perm", perm));
}

OpDef transpose_op() {
  OpDef def = define("transpose", {"X"}, {"Out"}, {"perm"});
  def.infer = infer_transpose;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const bool given = !context.attributes().get_or("perm", Ints{}).empty();
    if (!given) return [](OpContext& run) { run_transpose(permutation({}, run.tensor(0).rank()), run); };
    const Ints perm = context.attributes().get<Ints>("perm");
    return [axes = checked_axes(perm, static_cast<int>(perm.size()))](OpContext& run) { run_transpose(axes, run); };
  };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    const std::vector<int> axes = permutation(context.attributes(), known_rank(context, 0));
    return static_cast<int>(std::find(axes.begin(), axes.end(), axis) - axes.begin());
  });
  def.vectorize = vectorize_transpose;
  return def;
}

// ---- transpose_by: the permutation is an input ----

void infer_transpose_by(InferContext& context) {
  expect_index(context, 1);
  expect_rank(context, 1, 1);
  const VarType& x = context.tensor(0);
  const auto perm = constant_integers(context, 1);
  const std::int64_t count = perm ? static_cast<std::int64_t>(perm->size()) : extent(context, 1, 0);
  if (x.shape && count >= 0 && count != x.rank())
    throw ProgramError("expected a perm of " + std::to_string(x.rank()) + " axes, found " + std::to_string(count));
  if (!x.shape) return context.result(VarType::unranked(x.dtype));
  DDim shape;
  const std::vector<int> axes = perm ? checked_axes(*perm, x.rank()) : std::vector<int>{};
  for (int axis = 0; axis < x.rank(); ++axis)
    shape = shape.inserted(axis, perm ? (*x.shape)[axes[static_cast<std::size_t>(axis)]] : DDim::unknown);
  context.result(VarType(x.dtype, shape));
}

void vectorize_transpose_by(Vectorizer& v, const Op& op) {
  expect_shared(v, op, 1, "a perm");
  if (const auto perm = constant_integers(v.from(), op, 1)) {
    const std::vector<int> axes = checked_axes(*perm, v.rank(op.inputs[0]));
    Ints moved{0};
    for (const int axis : axes) moved.push_back(axis + 1);
    return v.bind_all(op.outputs, v.emit("transpose", {v.get(op.inputs[0])}, {{"perm", moved}}), true);
  }
  // Negative axes count from the end, where there is one axis more now.
  const VarId perm =
      v.emit("mod", {v.emit("cast", {v.get(op.inputs[1])}, {{"to", DType::i64}}).at(0), scalar_literal(v, v.rank(op.inputs[0]))}).at(0);
  const VarId behind = v.emit("add", {perm, scalar_literal(v, 1)}).at(0);
  v.bind_all(op.outputs, v.emit("transpose_by", {v.get(op.inputs[0]), joined(v, {literal(v, {0}), behind})}), true);
}

OpDef transpose_by_op() {
  OpDef def = define("transpose_by", {"X", "Perm"}, {"Out"});
  def.infer = infer_transpose_by;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      const Ints perm = run.integers(1);
      if (static_cast<int>(perm.size()) != run.tensor(0).rank())
        throw ShapeError("expected a perm of " + std::to_string(run.tensor(0).rank()) + " axes, found " + list_text(perm));
      run_transpose(checked_axes(perm, run.tensor(0).rank()), run);
    };
  };
  def.host_inputs = {1};
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    const auto perm = constant_integers(context, 1);
    if (!perm) refuse_rows("moves axes that are computed");
    const std::vector<int> axes = checked_axes(*perm, known_rank(context, 0));
    return static_cast<int>(std::find(axes.begin(), axes.end(), axis) - axes.begin());
  });
  def.vectorize = vectorize_transpose_by;
  return def;
}

// ---- squeeze, unsqueeze ----

/// The axes that go away: those named, or every axis of one element.
std::vector<int> squeezed_axes(const Attributes& attributes, const DDim& shape) {
  std::vector<int> axes = checked_axes(attributes.get_or("axes", Ints{}), shape.rank());
  if (!axes.empty()) return axes;
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (shape[axis] == 1) axes.push_back(axis);
  return axes;
}

DDim squeezed(const DDim& shape, const std::vector<int>& axes) {
  DDim left;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end())
      left = left.inserted(left.rank(), shape[axis]);
    else if (shape[axis] != 1 && shape[axis] != DDim::unknown)
      throw ShapeError("expected 1 element along axis " + std::to_string(axis) + ", found " + shape.to_string());
  }
  return left;
}

bool all_known(const DDim& shape) { return std::find(shape.begin(), shape.end(), DDim::unknown) == shape.end(); }

void infer_squeeze(InferContext& context) {
  const VarType& x = context.tensor(0);
  const bool named = !context.attributes().get_or("axes", Ints{}).empty();
  // Without names the rank depends on which extents are 1.
  if (!x.shape || (!named && !all_known(*x.shape))) return context.result(VarType::unranked(x.dtype));
  context.result(VarType(x.dtype, squeezed(*x.shape, squeezed_axes(context.attributes(), *x.shape))));
}

void run_squeeze(OpContext& context) {
  Tensor x = context.tensor(0);
  std::vector<int> axes = squeezed_axes(context.op().attributes, x.dims());
  const DDim dims = squeezed(x.dims(), axes);
  if (x.is_contiguous()) return context.set(0, x.reshape(dims));
  std::sort(axes.rbegin(), axes.rend());
  for (const int axis : axes) x = x.select(axis, 0);
  context.set(0, std::move(x));
}

/// The axes named, or those that are 1 where the type tells.
std::vector<int> static_squeezed_axes(const Program& program, const Op& op) {
  const std::optional<DDim>& shape = program.var(op.inputs[0]).type.shape;
  const bool named = !op.attributes.get_or("axes", Ints{}).empty();
  if (!shape || (!named && !all_known(*shape))) throw UnsupportedError("op squeeze: which axes go away is known only when it runs");
  return squeezed_axes(op.attributes, *shape);
}

void vectorize_squeeze(Vectorizer& v, const Op& op) {
  Ints moved;
  for (const int axis : static_squeezed_axes(v.from(), op)) moved.push_back(axis + 1);
  if (moved.empty()) return v.bind(op.outputs[0], v.get(op.inputs[0]), true);
  vectorize_with(v, op, with(op.attributes, "axes", moved));
}

OpDef squeeze_op() {
  OpDef def = define("squeeze", {"X"}, {"Out"}, {"axes"});
  def.infer = infer_squeeze;
  def.prepare = [](const PrepareContext&) -> OpKernel { return run_squeeze; };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    const std::vector<int> axes = static_squeezed_axes(context.program(), context.op());
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) refuse_rows("takes the axis of the rows away");
    return axis - static_cast<int>(std::count_if(axes.begin(), axes.end(), [axis](int gone) { return gone < axis; }));
  });
  def.vectorize = vectorize_squeeze;
  return def;
}

/// The new axes, counted in the result, ascending.
std::vector<int> unsqueezed_axes(const Attributes& attributes, int rank) {
  const Ints& axes = attributes.get<Ints>("axes");
  std::vector<int> places = checked_axes(axes, rank + static_cast<int>(axes.size()));
  std::sort(places.begin(), places.end());
  return places;
}

DDim unsqueezed(DDim shape, const std::vector<int>& places) {
  for (const int place : places) shape = shape.inserted(place, 1);
  return shape;
}

void run_unsqueeze(OpContext& context) {
  const Tensor& x = context.tensor(0);
  const DDim dims = unsqueezed(x.dims(), unsqueezed_axes(context.op().attributes, x.rank()));
  context.set(0, contiguous(x, context.stream()).reshape(dims));
}

OpDef unsqueeze_op() {
  OpDef def = define("unsqueeze", {"X"}, {"Out"}, {"axes"});
  def.infer = [](InferContext& context) {
    const VarType& x = context.tensor(0);
    if (!x.shape) return context.result(VarType::unranked(x.dtype));
    context.result(VarType(x.dtype, unsqueezed(*x.shape, unsqueezed_axes(context.attributes(), x.rank()))));
  };
  def.prepare = [](const PrepareContext&) -> OpKernel { return run_unsqueeze; };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    for (const int place : unsqueezed_axes(context.attributes(), known_rank(context, 0)))
      if (place <= axis) ++axis;
    return axis;
  });
  def.vectorize = [](Vectorizer& v, const Op& op) {
    Ints moved;
    for (const int place : unsqueezed_axes(op.attributes, v.rank(op.inputs[0]))) moved.push_back(place + 1);
    vectorize_with(v, op, with(op.attributes, "axes", moved));
  };
  return def;
}

}  // namespace

void add_shape_ops(OpRegistry& registry) {
  registry.add(shape_op());
  registry.add(size_op());
  registry.add(transpose_op());
  registry.add(transpose_by_op());
  registry.add(squeeze_op());
  registry.add(unsqueeze_op());
  add_shape_gradients(registry);
}

}  // namespace millrace::ops
