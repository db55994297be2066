// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

bool copies(const Ints& target, std::size_t place, bool allow_zero) { return target[place] == 0 && !allow_zero; }

[[noreturn]] void refuse_shape(const DDim& shape, const Ints& target) {
  throw ShapeError("expected a shape for the elements of " + shape.to_string() + ", found " + list_text(target));
}

/// The extents of a reshape; unknown ones on either side stay unknown. Copied axes take no part in what −1 is made of,
/// so that an axis without elements among them does no harm. ShapeError.
DDim reshaped(const DDim& shape, const Ints& target, bool allow_zero) {
  DDim made;
  DDim rest = shape;
  std::int64_t explicit_count = 1;
  int inferred = -1;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const int place = static_cast<int>(i);
    if (target[i] < -1 || (target[i] == -1 && inferred >= 0) || (copies(target, i, allow_zero) && place >= shape.rank()))
      refuse_shape(shape, target);
    if (target[i] == -1)
      inferred = place;
    else if (copies(target, i, allow_zero))
      rest[place] = 1;
    else
      explicit_count = checked_mul(explicit_count, target[i]);
    made = made.inserted(place, copies(target, i, allow_zero) ? shape[place] : target[i]);
  }
  const std::int64_t count = product_of(rest, 0, rest.rank());
  if (count == DDim::unknown) return made;
  const bool both_empty = product_of(shape, 0, shape.rank()) == 0 && product_of(made, 0, made.rank()) == 0;
  if (inferred < 0 && count != explicit_count && !both_empty) refuse_shape(shape, target);
  if (inferred < 0) return made;
  if (explicit_count == 0 || count % explicit_count != 0) refuse_shape(shape, target);
  made[inferred] = count / explicit_count;
  return made;
}

/// A product of extents, the unknown ones by name: what lies before or behind an axis.
struct Extents {
  std::int64_t known = 1;
  std::map<int, int> unknown;
  void times(std::int64_t extent, int name) {
    if (extent == DDim::unknown)
      ++unknown[name];
    else
      known *= extent;
  }
  friend bool operator==(const Extents&, const Extents&) = default;
};

/// Where the rows of axis `axis` lie in the result: there, what lies before and behind them is the same.
int follow_target(const DDim& shape, const Ints& target, bool allow_zero, int axis) {
  const DDim made = reshaped(shape, target, allow_zero);
  const auto name = [&](int place) { return copies(target, static_cast<std::size_t>(place), allow_zero) ? place : max_rank; };
  const auto of_shape = [&](int begin, int end) {
    Extents all;
    for (int at = begin; at < end; ++at) all.times(shape[at], at);
    return all;
  };
  const auto of_made = [&](int begin, int end) {
    Extents all;
    for (int at = begin; at < end; ++at) all.times(made[at], name(at));
    return all;
  };
  for (int place = 0; place < made.rank(); ++place) {
    if (of_shape(0, axis) != of_made(0, place)) continue;
    const bool copied = place == axis && name(place) == place;
    const bool fits = made[place] == shape[axis] || target[static_cast<std::size_t>(place)] == -1;
    if (copied || (fits && of_shape(axis + 1, shape.rank()) == of_made(place + 1, made.rank()))) return place;
  }
  refuse_rows("moves elements from row to row");
}

void vectorize_target(Vectorizer& v, const Op& op, const Ints& target, bool allow_zero) {
  const VarId x = v.get(op.inputs[0]);
  const std::optional<DDim>& shape = v.from().var(op.inputs[0]).type.shape;
  Ints moved = target;
  if (shape) {
    const DDim made = reshaped(*shape, target, allow_zero);
    for (std::size_t i = 0; i < moved.size(); ++i)
      if (moved[i] == -1) moved[i] = made[static_cast<int>(i)];
  }
  const bool explicit_zero = allow_zero && std::find(moved.begin(), moved.end(), 0) != moved.end();
  if (explicit_zero) {
    const VarId wanted = joined(v, {extents(v, x, 0, 1), literal(v, moved)});
    return v.bind(op.outputs[0], v.emit("reshape_to", {x, wanted}, {{"allowzero", true}}).at(0), true);
  }
  moved.insert(moved.begin(), 0);
  v.bind(op.outputs[0], v.emit("reshape", {x}, {{"shape", moved}}).at(0), true);
}

void infer_target(InferContext& context, const Ints& target, bool allow_zero) {
  const VarType& x = context.tensor(0);
  if (x.shape) return context.result(VarType(x.dtype, reshaped(*x.shape, target, allow_zero)));
  DDim made;
  for (std::size_t i = 0; i < target.size(); ++i)
    made = made.inserted(static_cast<int>(i), target[i] < 0 || copies(target, i, allow_zero) ? DDim::unknown : target[i]);
  context.result(VarType(x.dtype, made));
}

OpKernel run_target(Ints target, bool allow_zero) {
  return [target = std::move(target), allow_zero](OpContext& context) {
    const Tensor& x = context.tensor(0);
    context.set(0, contiguous(x, context.stream()).reshape(reshaped(x.dims(), target, allow_zero)));
  };
}

OpDef reshape_op() {
  OpDef def = define("reshape", {"X"}, {"Out"}, {"shape"});
  def.infer = [](InferContext& context) { infer_target(context, context.attributes().get<Ints>("shape"), false); };
  def.prepare = [](const PrepareContext& context) { return run_target(context.attributes().get<Ints>("shape"), false); };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    known_rank(context, 0);
    return follow_target(*context.tensor(0).shape, context.attributes().get<Ints>("shape"), false, axis);
  });
  def.vectorize = [](Vectorizer& v, const Op& op) { vectorize_target(v, op, op.attributes.get<Ints>("shape"), false); };
  return def;
}

// ---- reshape_to: the shape is a tensor ----

bool allows_zero(const Attributes& attributes) { return attributes.get_or("allowzero", false); }

void infer_reshape_to(InferContext& context) {
  const bool allow_zero = allows_zero(context.attributes());
  if (const auto target = constant_integers(context, 1)) return infer_target(context, *target, allow_zero);
  expect_index(context, 1);
  const std::int64_t rank = list_length(context, 1);
  if (rank == DDim::unknown) return context.result(VarType::unranked(context.tensor(0).dtype));
  context.result(VarType(context.tensor(0).dtype, DDim(Ints(static_cast<std::size_t>(rank), DDim::unknown))));
}

OpKernel prepare_reshape_to(const PrepareContext& context) {
  const bool allow_zero = allows_zero(context.attributes());
  if (auto target = constant_integers(context, 1)) return run_target(std::move(*target), allow_zero);
  return [allow_zero](OpContext& run) {
    const Tensor& x = run.tensor(0);
    run.set(0, contiguous(x, run.stream()).reshape(reshaped(x.dims(), run.integers(1), allow_zero)));
  };
}

void vectorize_reshape_to(Vectorizer& v, const Op& op) {
  expect_shared(v, op, 1, "a shape");
  const bool allow_zero = allows_zero(op.attributes);
  if (const auto target = constant_integers(v.from(), op, 1)) return vectorize_target(v, op, *target, allow_zero);
  const VarId x = v.get(op.inputs[0]);
  const VarId wanted = v.from().var(op.inputs[1]).type.dtype == DType::i64
                           ? v.get(op.inputs[1])
                           : v.emit("cast", {v.get(op.inputs[1])}, {{"to", DType::i64}}).at(0);
  const VarId all = joined(v, {extents(v, x, 0, 1), wanted});
  v.bind(op.outputs[0], v.emit("reshape_to", {x, all}, {{"allowzero", allow_zero}}).at(0), true);
}

OpDef reshape_to_op() {
  OpDef def = define("reshape_to", {"X", "Shape"}, {"Out"}, {"allowzero"});
  def.infer = infer_reshape_to;
  def.prepare = prepare_reshape_to;
  def.host_inputs = {1};
  def.follow_rows = follow_first([](const InferContext& context, int axis) -> int {
    known_rank(context, 0);
    const auto target = constant_integers(context, 1);
    if (!target) refuse_rows("takes a shape that is computed");
    return follow_target(*context.tensor(0).shape, *target, allows_zero(context.attributes()), axis);
  });
  def.vectorize = vectorize_reshape_to;
  return def;
}

// ---- flatten ----

int flatten_at(const Attributes& attributes, int rank) {
  const std::int64_t axis = attributes.get_or("axis", std::int64_t{1});
  if (axis < -rank || axis > rank)
    throw ProgramError("expected an axis of 0 to rank " + std::to_string(rank) + ", found " + std::to_string(axis));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

DDim flattened(const DDim& shape, int axis) { return {product_of(shape, 0, axis), product_of(shape, axis, shape.rank())}; }

void vectorize_flatten(Vectorizer& v, const Op& op) {
  const VarId x = v.get(op.inputs[0]);
  const DDim& shape = v.from().var(op.inputs[0]).type.shape.value();
  const int axis = flatten_at(op.attributes, v.rank(op.inputs[0]));
  const DDim made = flattened(shape, axis);
  if (made[0] > 0 && made[1] > 0) return v.bind(op.outputs[0], v.emit("reshape", {x}, {{"shape", Ints{0, made[0], made[1]}}}).at(0), true);
  std::vector<VarId> parts{extents(v, x, 0, 1)};
  for (const auto& [begin, end] : {std::pair(1, axis + 1), std::pair(axis + 1, shape.rank() + 1)})
    parts.push_back(
        v.emit("reduce", {extents(v, x, begin, end)}, {{"kind", std::string("prod")}, {"axes", Ints{0}}, {"keepdims", true}}).at(0));
  v.bind(op.outputs[0], v.emit("reshape_to", {x, joined(v, parts)}, {{"allowzero", true}}).at(0), true);
}

OpDef flatten_op() {
  OpDef def = define("flatten", {"X"}, {"Out"}, {"axis"});
  def.infer = [](InferContext& context) {
    const VarType& x = context.tensor(0);
    if (!x.shape) return context.result(VarType(x.dtype, DDim{DDim::unknown, DDim::unknown}));
    context.result(VarType(x.dtype, flattened(*x.shape, flatten_at(context.attributes(), x.rank()))));
  };
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& context) {
      const Tensor& x = context.tensor(0);
      const DDim dims = flattened(x.dims(), flatten_at(context.op().attributes, x.rank()));
      context.set(0, contiguous(x, context.stream()).reshape(dims));
    };
  };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    const int at = flatten_at(context.attributes(), known_rank(context, 0));
    const DDim shape = context.tensor(0).shape->erased(axis);
    const bool first = axis < at;
    const std::int64_t others = first ? product_of(shape, 0, at - 1) : product_of(shape, at, shape.rank());
    if (others != 1) refuse_rows("merges the rows with another axis");
    return first ? 0 : 1;
  });
  def.vectorize = vectorize_flatten;
  return def;
}

}  // namespace

void add_reshape_ops(OpRegistry& registry) {
  registry.add(reshape_op());
  registry.add(reshape_to_op());
  registry.add(flatten_op());
  add_reshape_gradients(registry);
}

}  // namespace millrace::ops
