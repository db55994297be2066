// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/pad.h>
#include <millrace/kernels/where.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/exact_integers.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/checked.h>

namespace millrace::ops {
namespace {

// ---- pad, pad_by: pads are those before each axis, then those behind each ----

PadMode mode_of(const Attributes& attributes) {
  const std::string name = attributes.get_or("mode", std::string("constant"));
  if (name == "constant") return PadMode::constant;
  if (name == "reflect") return PadMode::reflect;
  if (name == "edge") return PadMode::edge;
  if (name == "wrap") return PadMode::wrap;
  throw ProgramError("attribute 'mode': expected constant, reflect, edge or wrap, found '" + name + "'");
}

void expect_pads(const Ints& pads, int rank) {
  if (pads.size() != 2 * static_cast<std::size_t>(rank))
    throw ShapeError("expected " + std::to_string(2 * rank) + " pads, found " + list_text(pads));
}

void infer_pads(InferContext& context, const Ints& pads) {
  mode_of(context.attributes());
  const VarType& x = context.tensor(0);
  if (!x.shape) return context.result(VarType::unranked(x.dtype));
  expect_pads(pads, x.rank());
  DDim shape = *x.shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t added = checked_add(pads[static_cast<std::size_t>(axis)], pads[static_cast<std::size_t>(axis + x.rank())]);
    if (shape[axis] == DDim::unknown) continue;
    shape[axis] = checked_add(shape[axis], added);
    if (shape[axis] < 0)
      throw ProgramError("expected pads that leave no axis negative, found " + list_text(pads) + " for " + context.describe(0));
  }
  context.result(VarType(x.dtype, shape));
}

void run_pads(OpContext& context, const Ints& pads, PadMode mode, double value) {
  const Tensor& x = context.tensor(0);
  expect_pads(pads, x.rank());
  const auto middle = pads.begin() + x.rank();
  context.set(0, pad(x, Ints(pads.begin(), middle), Ints(middle, pads.end()), mode, value, context.stream()));
}

/// Pads integers that f64 cannot hold: `value` outside x.
void run_exact_pads(OpContext& context, const Ints& pads, std::int64_t value) {
  const Tensor& x = context.tensor(0);
  expect_pads(pads, x.rank());
  const auto middle = pads.begin() + x.rank();
  const Ints before(pads.begin(), middle);
  const Ints after(middle, pads.end());
  const Tensor inside = pad(ones(x.dims(), DType::boolean, context.stream()), before, after, PadMode::constant, 0, context.stream());
  const Tensor padded = pad(x, before, after, PadMode::constant, 0, context.stream());
  context.set(0, where(inside, padded, full_exactly(DDim{}, value, context.stream()), context.stream()));
}

int follow_pads(const InferContext& context, const Ints& pads, int axis) {
  const int rank = known_rank(context, 0);
  expect_pads(pads, rank);
  if (pads[static_cast<std::size_t>(axis)] != 0 || pads[static_cast<std::size_t>(axis + rank)] != 0) refuse_rows("pads the rows");
  return axis;
}

Ints moved_pads(const Ints& pads) {
  Ints moved = pads;
  moved.insert(moved.begin() + static_cast<std::ptrdiff_t>(pads.size() / 2), 0);
  moved.insert(moved.begin(), 0);
  return moved;
}

OpDef pad_op() {
  OpDef def = define("pad", {"X"}, {"Out"}, {"pads", "mode", "value"});
  def.infer = [](InferContext& context) { infer_pads(context, context.attributes().get<Ints>("pads")); };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const Attributes& attributes = context.attributes();
    return [pads = attributes.get<Ints>("pads"), mode = mode_of(attributes), value = attributes.get_or("value", 0.0)](OpContext& run) {
      run_pads(run, pads, mode, value);
    };
  };
  def.follow_rows = follow_first(
      [](const InferContext& context, int axis) { return follow_pads(context, context.attributes().get<Ints>("pads"), axis); });
  def.vectorize = [](Vectorizer& v, const Op& op) {
    vectorize_with(v, op, with(op.attributes, "pads", moved_pads(op.attributes.get<Ints>("pads"))));
  };
  return def;
}

void infer_pad_by(InferContext& context) {
  expect_index(context, 1);
  if (context.has(2)) {
    expect_same_dtype(context, 0, 2);
    expect_scalar(context, 2);
  }
  if (const auto pads = constant_integers(context, 1)) return infer_pads(context, *pads);
  mode_of(context.attributes());
  const VarType& x = context.tensor(0);
  if (!x.shape) return context.result(VarType::unranked(x.dtype));
  const std::int64_t found = list_length(context, 1);
  if (found != DDim::unknown && found != 2 * x.rank())
    throw ProgramError("expected " + std::to_string(2 * x.rank()) + " pads, found " + context.describe(1));
  context.result(VarType(x.dtype, DDim(Ints(static_cast<std::size_t>(x.rank()), DDim::unknown))));
}

void vectorize_pad_by(Vectorizer& v, const Op& op) {
  expect_shared(v, op, 1, "a list of pads");
  expect_shared(v, op, 2, "a value");
  const std::int64_t rank = v.rank(op.inputs[0]);
  VarId pads = v.get(op.inputs[1]);
  if (const auto held = constant_integers(v.from(), op, 1)) {
    pads = literal(v, moved_pads(*held));
  } else {
    if (v.from().var(op.inputs[1]).type.dtype != DType::i64) pads = v.emit("cast", {pads}, {{"to", DType::i64}}).at(0);
    const VarId none = literal(v, {0});
    const auto half = [&](std::int64_t begin) {
      return v.emit("slice", {pads}, {{"starts", Ints{begin}}, {"ends", Ints{begin + rank}}, {"axes", Ints{0}}, {"steps", Ints{1}}}).at(0);
    };
    const VarId before = half(0);
    const VarId behind = half(rank);
    pads = joined(v, {none, before, none, behind});
  }
  std::vector<VarId> inputs{v.get(op.inputs[0]), pads};
  if (op.inputs.size() > 2) inputs.push_back(v.get(op.inputs[2]));
  v.bind_all(op.outputs, v.emit("pad_by", inputs, op.attributes), true);
}

OpDef pad_by_op() {
  OpDef def = define("pad_by", {"X", "Pads", "Value?"}, {"Out"}, {"mode"});
  def.infer = infer_pad_by;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const auto pads = constant_integers(context, 1);
    const PadMode mode = mode_of(context.attributes());
    return [pads, mode](OpContext& run) {
      const Ints given = pads ? *pads : run.integers(1);
      const auto exact = run.has(2) && mode == PadMode::constant ? beyond_f64(run.tensor(2)) : std::nullopt;
      exact ? run_exact_pads(run, given, *exact) : run_pads(run, given, mode, run.has(2) ? run.tensor(2).item() : 0);
    };
  };
  def.host_inputs = {1, 2};
  def.follow_rows = follow_first([](const InferContext& context, int axis) -> int {
    const auto pads = constant_integers(context, 1);
    if (!pads) refuse_rows("pads by numbers that are computed");
    return follow_pads(context, *pads, axis);
  });
  def.vectorize = vectorize_pad_by;
  return def;
}

// ---- expand, tile ----

/// The extents of both, broadcast with each other.
DDim expanded(const InferContext& context, DDim shape, const Ints& wanted) {
  const int rank = std::max(shape.rank(), static_cast<int>(wanted.size()));
  while (shape.rank() < rank) shape = shape.inserted(0, 1);
  const int shift = rank - static_cast<int>(wanted.size());
  for (int axis = shift; axis < rank; ++axis) {
    const std::int64_t want = wanted[static_cast<std::size_t>(axis - shift)];
    if (want < 0) throw ProgramError("expected extents of 0 or more, found " + list_text(wanted));
    if (shape[axis] == want || want == 1) continue;
    if (shape[axis] != 1 && shape[axis] != DDim::unknown)
      throw ProgramError("expected extents that broadcast, found " + context.describe(0) + " and " + list_text(wanted));
    shape[axis] = want;
  }
  return shape;
}

void infer_expand(InferContext& context) {
  expect_index(context, 1);
  const VarType& x = context.tensor(0);
  const std::int64_t length = list_length(context, 1);
  if (!x.shape || length == DDim::unknown) return context.result(VarType::unranked(x.dtype));
  if (const auto wanted = constant_integers(context, 1)) return context.result(VarType(x.dtype, expanded(context, *x.shape, *wanted)));
  DDim shape = *x.shape;
  while (shape.rank() < length) shape = shape.inserted(0, 1);
  // The extents of a run may stretch an axis of 1; any other extent stays.
  for (int axis = shape.rank() - static_cast<int>(length); axis < shape.rank(); ++axis)
    if (shape[axis] == 1) shape[axis] = DDim::unknown;
  context.result(VarType(x.dtype, shape));
}

void vectorize_expand(Vectorizer& v, const Op& op) {
  expect_shared(v, op, 1, "a shape");
  const std::optional<DDim>& list = v.from().var(op.inputs[1]).type.shape;
  if (!list || (*list)[0] == DDim::unknown) throw UnsupportedError("op expand: the rank of its result is not known");
  const int length = static_cast<int>((*list)[0]);
  const int rank = std::max(v.rank(op.inputs[0]), length);
  // The extents of the shape stand behind a one for N, and behind a one for each axis that the shape does not reach.
  const Ints ones(static_cast<std::size_t>(rank - length + 1), 1);
  VarId wanted = no_var;
  if (const auto held = constant_integers(v.from(), op, 1)) {
    Ints all = ones;
    all.insert(all.end(), held->begin(), held->end());
    wanted = literal(v, all);
  } else {
    VarId computed = v.get(op.inputs[1]);
    if (v.from().var(op.inputs[1]).type.dtype != DType::i64) computed = v.emit("cast", {computed}, {{"to", DType::i64}}).at(0);
    wanted = joined(v, {literal(v, ones), computed});
  }
  v.bind(op.outputs[0], v.emit("expand", {v.aligned(op.inputs[0], rank), wanted}).at(0), true);
}

OpDef expand_op() {
  OpDef def = define("expand", {"X", "Shape"}, {"Out"});
  def.infer = infer_expand;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    if (const auto wanted = constant_integers(context, 1))
      return [dims = DDim(*wanted)](OpContext& run) { run.set(0, expand(run.tensor(0), dims, run.stream())); };
    return [](OpContext& run) { run.set(0, expand(run.tensor(0), DDim(run.integers(1)), run.stream())); };
  };
  def.host_inputs = {1};
  def.follow_rows = follow_first([](const InferContext& context, int axis) -> int {
    const auto wanted = constant_integers(context, 1);
    if (!wanted) refuse_rows("takes a shape that is computed");
    const int rank = known_rank(context, 0);
    const int length = static_cast<int>(wanted->size());
    const int behind = rank - axis;
    if (behind <= length && (*wanted)[static_cast<std::size_t>(length - behind)] != 1) refuse_rows("repeats the rows");
    return axis + std::max(length - rank, 0);
  });
  def.vectorize = vectorize_expand;
  return def;
}

void infer_tile(InferContext& context) {
  expect_index(context, 1);
  const VarType& x = context.tensor(0);
  const std::int64_t length = list_length(context, 1);
  if (!x.shape) return context.result(VarType::unranked(x.dtype));
  if (length != DDim::unknown && length != x.rank())
    throw ProgramError("expected " + std::to_string(x.rank()) + " repeats, found " + context.describe(1));
  const auto repeats = constant_integers(context, 1);
  DDim shape = *x.shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t times = repeats ? (*repeats)[static_cast<std::size_t>(axis)] : DDim::unknown;
    if (repeats && times < 0) throw ProgramError("expected repeats of 0 or more, found " + list_text(*repeats));
    shape[axis] = !repeats || shape[axis] == DDim::unknown ? DDim::unknown : checked_mul(shape[axis], times);
  }
  context.result(VarType(x.dtype, shape));
}

void vectorize_tile(Vectorizer& v, const Op& op) {
  expect_shared(v, op, 1, "a list of repeats");
  VarId repeats = v.get(op.inputs[1]);
  if (const auto held = constant_integers(v.from(), op, 1)) {
    Ints all = *held;
    all.insert(all.begin(), 1);
    repeats = literal(v, all);
  } else {
    if (v.from().var(op.inputs[1]).type.dtype != DType::i64) repeats = v.emit("cast", {repeats}, {{"to", DType::i64}}).at(0);
    repeats = joined(v, {literal(v, {1}), repeats});
  }
  v.bind(op.outputs[0], v.emit("tile", {v.get(op.inputs[0]), repeats}).at(0), true);
}

OpDef tile_op() {
  OpDef def = define("tile", {"X", "Repeats"}, {"Out"});
  def.infer = infer_tile;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const auto repeats = constant_integers(context, 1);
    return [repeats](OpContext& run) { run.set(0, tile(run.tensor(0), repeats ? *repeats : run.integers(1), run.stream())); };
  };
  def.host_inputs = {1};
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    const auto repeats = constant_integers(context, 1);
    if (!repeats) refuse_rows("repeats by numbers that are computed");
    if ((*repeats)[static_cast<std::size_t>(axis)] != 1) refuse_rows("repeats the rows");
    return axis;
  });
  def.vectorize = vectorize_tile;
  return def;
}

}  // namespace

void add_spread_ops(OpRegistry& registry) {
  registry.add(pad_op());
  registry.add(pad_by_op());
  registry.add(expand_op());
  registry.add(tile_op());
  add_spread_gradients(registry);
}

}  // namespace millrace::ops
