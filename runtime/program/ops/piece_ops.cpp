// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include <millrace/kernels/concat.h>
#include <millrace/kernels/slice.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/checked.h>

namespace millrace::ops {
namespace {

// ---- concat ----

void infer_concat(InferContext& context) {
  if (context.inputs() == 0) throw ProgramError("expected at least one input, found none");
  std::optional<DDim> all = context.tensor(0).shape;
  for (std::size_t input = 1; input < context.inputs(); ++input) {
    expect_same_dtype(context, 0, input);
    const std::optional<DDim>& part = context.tensor(input).shape;
    if (!all || !part) {
      all = std::nullopt;
      continue;
    }
    const int axis = checked_axis(context.attributes().get<std::int64_t>("axis"), all->rank());
    if (part->rank() != all->rank())
      throw ProgramError("expected rank " + std::to_string(all->rank()) + ", found " + context.describe(input));
    for (int at = 0; at < all->rank(); ++at) {
      std::int64_t& held = (*all)[at];
      if (at != axis)
        held = same_extent(held, (*part)[at], "extents along axis " + std::to_string(at));
      else
        held = held == DDim::unknown || (*part)[at] == DDim::unknown ? DDim::unknown : checked_add(held, (*part)[at]);
    }
  }
  if (all) checked_axis(context.attributes().get<std::int64_t>("axis"), all->rank());
  context.result(tensor_type(context.tensor(0).dtype, all));
}

std::vector<int> follow_concat(const InferContext& context, const std::vector<int>& axes) {
  int rows = -1;
  std::int64_t count = DDim::unknown;
  for (std::size_t input = 0; input < axes.size(); ++input) {
    if (axes[input] < 0) continue;
    if (rows >= 0 && axes[input] != rows) refuse_rows("the rows of its inputs lie on different axes");
    rows = axes[input];
    count = extent(context, input, rows);
  }
  if (rows < 0) return {-1};
  if (rows == checked_axis(context.attributes().get<std::int64_t>("axis"), known_rank(context, 0)))
    refuse_rows("puts rows one behind the other");
  for (std::size_t input = 0; input < axes.size(); ++input)
    if (axes[input] < 0) check_same_for_each_row(context, input, rows, count);
  return {rows};
}

OpDef concat_op() {
  OpDef def = define("concat", {"Xs..."}, {"Out"}, {"axis"});
  def.infer = infer_concat;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(context.attributes().get<std::int64_t>("axis"));
    return [axis](OpContext& run) {
      std::vector<Tensor> parts;
      parts.reserve(run.inputs());
      for (std::size_t input = 0; input < run.inputs(); ++input) parts.push_back(run.tensor(input));
      run.set(0, concat(parts, axis, run.stream()));
    };
  };
  def.follow_rows = follow_concat;
  def.vectorize = [](Vectorizer& v, const Op& op) {
    const VarId like = any_batched_var(v, op);
    std::vector<VarId> inputs;
    for (const VarId input : op.inputs) inputs.push_back(batched_var(v, input, like));
    const std::int64_t axis = moved_axis(op.attributes.get<std::int64_t>("axis"), v.rank(op.inputs[0]));
    v.bind_all(op.outputs, v.emit("concat", inputs, with(op.attributes, "axis", axis)), true);
  };
  return def;
}

// ---- split ----

void infer_split(InferContext& context) {
  const VarType& x = context.tensor(0);
  const Ints& sizes = context.attributes().get<Ints>("sizes");
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0) throw ProgramError("expected sizes of 0 or more, found " + list_text(sizes));
    sum = checked_add(sum, size);
  }
  const int axis = x.shape ? checked_axis(context.attributes().get<std::int64_t>("axis"), x.rank()) : 0;
  if (x.shape && (*x.shape)[axis] != DDim::unknown && (*x.shape)[axis] != sum)
    throw ProgramError("expected sizes that add up to axis " + std::to_string(axis) + " of " + context.describe(0) + ", found " +
                       list_text(sizes));
  for (const std::int64_t size : sizes) {
    VarType part = tensor_type(x.dtype, x.shape);
    if (part.shape) (*part.shape)[axis] = size;
    context.result(std::move(part));
  }
}

OpDef split_op() {
  OpDef def = define("split", {"X"}, {"Out..."}, {"axis", "sizes"});
  def.infer = infer_split;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(context.attributes().get<std::int64_t>("axis"));
    return [axis, sizes = context.attributes().get<Ints>("sizes")](OpContext& run) {
      std::vector<Tensor> parts = split(run.tensor(0), axis, sizes);
      for (std::size_t part = 0; part < parts.size(); ++part) run.set(part, std::move(parts[part]));
    };
  };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) {
    const Attributes& attributes = context.attributes();
    if (axes[0] >= 0 && axes[0] == checked_axis(attributes.get<std::int64_t>("axis"), known_rank(context, 0)))
      refuse_rows("splits the rows");
    return std::vector<int>(attributes.get<Ints>("sizes").size(), axes[0]);
  };
  def.vectorize = [](Vectorizer& v, const Op& op) {
    const std::int64_t axis = moved_axis(op.attributes.get<std::int64_t>("axis"), v.rank(op.inputs[0]));
    vectorize_with(v, op, with(op.attributes, "axis", axis));
  };
  return def;
}

// ---- slice, slice_by ----

/// x[start:end:step] on each of `axes`.
struct Cut {
  Ints starts;
  Ints ends;
  Ints axes;
  Ints steps;
};

/// Axes 0, 1, … and steps of 1 where none are given.
Cut complete(Cut cut) {
  if (cut.axes.empty())
    for (std::size_t axis = 0; axis < cut.starts.size(); ++axis) cut.axes.push_back(static_cast<std::int64_t>(axis));
  if (cut.steps.empty()) cut.steps.assign(cut.starts.size(), 1);
  if (cut.ends.size() != cut.starts.size() || cut.axes.size() != cut.starts.size() || cut.steps.size() != cut.starts.size())
    throw ShapeError("expected starts, ends, axes and steps of one length, found " + list_text(cut.starts) + ", " + list_text(cut.ends) +
                     ", " + list_text(cut.axes) + " and " + list_text(cut.steps));
  for (const std::int64_t step : cut.steps)
    if (step == 0) throw ArgumentError("expected steps other than 0, found " + list_text(cut.steps));
  return cut;
}

Cut cut_of(const Attributes& attributes) {
  return complete({attributes.get<Ints>("starts"), attributes.get<Ints>("ends"), attributes.get_or("axes", Ints{}),
                   attributes.get_or("steps", Ints{})});
}

bool has_input(const Op& op, std::size_t input) { return input < op.inputs.size() && op.inputs[input] != no_var; }

/// The ranges of `slice_by`, when none of them is computed.
std::optional<Cut> constant_cut(const Program& program, const Op& op) {
  Ints lists[4];
  for (std::size_t input = 1; input <= 4; ++input) {
    if (!has_input(op, input)) continue;
    const auto held = constant_integers(program, op, input);
    if (!held) return std::nullopt;
    lists[input - 1] = *held;
  }
  return complete({lists[0], lists[1], lists[2], lists[3]});
}

/// The number of elements that x[start:end:step] has on an axis of `extent` elements, by ONNX's rules.
std::int64_t cut_length(std::int64_t extent, std::int64_t start, std::int64_t end, std::int64_t step) {
  const auto place = [extent](std::int64_t at, std::int64_t least, std::int64_t most) {
    return std::clamp(at < 0 ? at + extent : at, least, most);
  };
  if (step > 0) {
    const std::int64_t span = place(end, 0, extent) - place(start, 0, extent);
    return span <= 0 ? 0 : (span - 1) / step + 1;
  }
  const std::int64_t span = place(start, -1, extent - 1) - place(end, -1, extent - 1);
  return span <= 0 ? 0 : -((span - 1) / step) + 1;
}

bool takes_all(const Cut& cut, std::size_t i, std::int64_t extent) {
  if (cut.steps[i] != 1 || cut.starts[i] != 0) return false;
  return cut.ends[i] >= std::numeric_limits<std::int32_t>::max() || (extent != DDim::unknown && cut.ends[i] >= extent);
}

void infer_cut(InferContext& context, const Cut& cut) {
  const VarType& x = context.tensor(0);
  if (!x.shape) return context.result(VarType::unranked(x.dtype));
  DDim shape = *x.shape;
  const std::vector<int> axes = checked_axes(cut.axes, x.rank());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t extent = shape[axes[i]];
    if (extent != DDim::unknown) shape[axes[i]] = cut_length(extent, cut.starts[i], cut.ends[i], cut.steps[i]);
  }
  context.result(VarType(x.dtype, shape));
}

OpKernel run_cut(const Cut& cut) {
  return [starts = cut.starts, ends = cut.ends, steps = cut.steps, axes = std::vector<int>(cut.axes.begin(), cut.axes.end())](
             OpContext& run) { run.set(0, slice_view(run.tensor(0), starts, ends, axes, steps)); };
}

int follow_cut(const InferContext& context, const Cut& cut, int axis) {
  const std::vector<int> axes = checked_axes(cut.axes, known_rank(context, 0));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != axis || takes_all(cut, i, extent(context, 0, axis))) continue;
    refuse_rows(cut.steps[i] < 0 ? "takes rows in reverse" : "takes some of the rows");
  }
  return axis;
}

void vectorize_cut(Vectorizer& v, const Op& op, const Cut& cut) {
  Attributes attributes{
      {"starts", cut.starts}, {"ends", cut.ends}, {"axes", moved_axes(cut.axes, v.rank(op.inputs[0]))}, {"steps", cut.steps}};
  v.bind_all(op.outputs, v.emit("slice", {v.get(op.inputs[0])}, std::move(attributes)), true);
}

OpDef slice_op() {
  OpDef def = define("slice", {"X"}, {"Out"}, {"starts", "ends", "axes", "steps"});
  def.infer = [](InferContext& context) { infer_cut(context, cut_of(context.attributes())); };
  def.prepare = [](const PrepareContext& context) { return run_cut(cut_of(context.attributes())); };
  def.follow_rows =
      follow_first([](const InferContext& context, int axis) { return follow_cut(context, cut_of(context.attributes()), axis); });
  def.vectorize = [](Vectorizer& v, const Op& op) { vectorize_cut(v, op, cut_of(op.attributes)); };
  return def;
}

void infer_slice_by(InferContext& context) {
  for (std::size_t input = 1; input < context.inputs(); ++input) {
    if (!context.has(input)) continue;
    expect_index(context, input);
    expect_rank(context, input, 1);
  }
  if (const auto cut = constant_cut(context.program(), context.op())) return infer_cut(context, *cut);
  const VarType& x = context.tensor(0);
  if (!x.shape) return context.result(VarType::unranked(x.dtype));
  const auto axes = constant_integers(context, 3);
  DDim shape = *x.shape;
  if (axes)
    for (const int axis : checked_axes(*axes, x.rank())) shape[axis] = DDim::unknown;
  else
    for (int axis = 0; axis < shape.rank(); ++axis) shape[axis] = DDim::unknown;
  context.result(VarType(x.dtype, shape));
}

void run_slice_by(OpContext& context) {
  const auto list = [&](std::size_t input) { return context.has(input) ? context.integers(input) : Ints{}; };
  const Cut cut = complete({list(1), list(2), list(3), list(4)});
  const std::vector<int> axes(cut.axes.begin(), cut.axes.end());
  context.set(0, slice_view(context.tensor(0), cut.starts, cut.ends, axes, cut.steps));
}

void vectorize_slice_by(Vectorizer& v, const Op& op) {
  for (std::size_t input = 1; input < op.inputs.size(); ++input) expect_shared(v, op, input, "a list");
  if (const auto cut = constant_cut(v.from(), op)) return vectorize_cut(v, op, *cut);
  Ints axes;
  if (has_input(op, 3)) {
    const auto held = constant_integers(v.from(), op, 3);
    if (!held) throw UnsupportedError("op slice_by: expected axes that are constant, found axes that are computed");
    axes = *held;
  } else {
    const std::optional<DDim>& starts = v.from().var(op.inputs[1]).type.shape;
    if (!starts || (*starts)[0] == DDim::unknown) throw UnsupportedError("op slice_by: how many axes it cuts is not known");
    for (std::int64_t axis = 0; axis < (*starts)[0]; ++axis) axes.push_back(axis);
  }
  std::vector<VarId> inputs{v.get(op.inputs[0]), v.get(op.inputs[1]), v.get(op.inputs[2]),
                            literal(v, moved_axes(axes, v.rank(op.inputs[0])))};
  if (has_input(op, 4)) inputs.push_back(v.get(op.inputs[4]));
  v.bind_all(op.outputs, v.emit("slice_by", inputs), true);
}

OpDef slice_by_op() {
  OpDef def = define("slice_by", {"X", "Starts", "Ends", "Axes?", "Steps?"}, {"Out"});
  def.infer = infer_slice_by;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    if (const auto cut = constant_cut(context.program(), context.op())) return run_cut(*cut);
    return run_slice_by;
  };
  def.host_inputs = {1, 2, 3, 4};
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    if (const auto cut = constant_cut(context.program(), context.op())) return follow_cut(context, *cut, axis);
    const auto axes = constant_integers(context, 3);
    if (!axes) refuse_rows("cuts axes that are computed");
    const std::vector<int> places = checked_axes(*axes, known_rank(context, 0));
    if (std::find(places.begin(), places.end(), axis) != places.end()) refuse_rows("takes some of the rows");
    return axis;
  });
  def.vectorize = vectorize_slice_by;
  return def;
}

// ---- reverse ----

OpDef reverse_op() {
  OpDef def = define("reverse", {"X"}, {"Out"}, {"axis"});
  def.infer = [](InferContext& context) {
    const VarType& x = context.tensor(0);
    if (x.shape) checked_axis(context.attributes().get<std::int64_t>("axis"), x.rank());
    context.result(tensor_type(x.dtype, x.shape));
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(context.attributes().get<std::int64_t>("axis"));
    return [axis](OpContext& run) { run.set(0, reverse(run.tensor(0), axis, run.stream())); };
  };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    if (axis == checked_axis(context.attributes().get<std::int64_t>("axis"), known_rank(context, 0))) refuse_rows("reverses the rows");
    return axis;
  });
  def.vectorize = [](Vectorizer& v, const Op& op) {
    vectorize_with(v, op, with(op.attributes, "axis", moved_axis(op.attributes.get<std::int64_t>("axis"), v.rank(op.inputs[0]))));
  };
  return def;
}

}  // namespace

void add_piece_ops(OpRegistry& registry) {
  registry.add(concat_op());
  registry.add(split_op());
  registry.add(slice_op());
  registry.add(slice_by_op());
  registry.add(reverse_op());
  add_piece_gradients(registry);
}

}  // namespace millrace::ops
