// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arrays.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {

const VarType& array_type(const InferContext& context, std::size_t input) {
  const VarType& type = context.type(input);
  if (!type.is_array())
    throw ProgramError("expected an array as " + millrace::internal::input_name(context.program(), context.op(), input) + ", found " +
                       context.describe(input));
  return type;
}

const VarType& slot_type(const InferContext& context, std::size_t input) {
  const VarType& type = array_type(context, input);
  if (type.open)
    throw ProgramError("expected an array whose slots have a type, found " + context.describe(input) +
                       ": write to it first, or declare dtype and shape");
  return type;
}

void expect_order(const InferContext& context, std::size_t input) {
  if (context.type(input).kind != VarKind::order)
    throw ProgramError("expected an order, as unpack gives, as " + millrace::internal::input_name(context.program(), context.op(), input) +
                       ", found " + context.describe(input));
}

namespace {

void expect_place(const InferContext& context, std::size_t input) {
  expect_index(context, input);
  expect_scalar(context, input);
}

/// The content of `slot`, as a tensor.
VarType value_type(const VarType& slot) {
  VarType type = tensor_type(slot.dtype, slot.shape);
  type.lod_depth = slot.lod_depth;
  type.ordered = slot.ordered;
  return type;
}

OpDef array_op(const char* name, std::vector<std::string> inputs, std::vector<std::string> outputs,
               std::function<void(InferContext&)> infer, std::vector<std::string> attributes = {}) {
  OpDef def = define(name, std::move(inputs), std::move(outputs), std::move(attributes));
  def.infer = std::move(infer);
  def.passes_lod = false;
  return def;
}

// ---- tensor_array ----

/// The slots of an array with an order differ in rows.
void expect_extents(const InferContext& context) {
  expect_index(context, 2);
  list_length(context, 2);
  if (context.has(1)) throw ProgramError("expected an order or the extents of a slot, found both");
}

std::optional<std::int64_t> window_of(const Attributes& attributes) {
  return attributes.has("window") ? std::optional(attributes.get<std::int64_t>("window")) : std::nullopt;
}

void infer_tensor_array(InferContext& context) {
  const Attributes& attributes = context.attributes();
  const auto window = window_of(attributes);
  const bool growable = attributes.get_or("growable", false);
  const int kinds = (context.has(0) ? 1 : 0) + (growable ? 1 : 0) + (window ? 1 : 0);
  if (kinds != 1 || window.value_or(0) < 0)
    throw ProgramError("expected a size, or growable, or a window of 0 or more slots, found " +
                       std::string(context.has(0) ? "a size, " : "no size, ") + (growable ? "growable, " : "not growable, ") +
                       (window ? "a window of " + std::to_string(*window) : "no window"));
  if (context.has(0)) expect_place(context, 0);
  if (context.has(1)) expect_order(context, 1);
  if (context.has(1) && !context.has(0)) throw ProgramError("expected a size for an array that is made with an order, found none");
  if (context.has(2)) expect_extents(context);
  if (!attributes.has("dtype")) return context.result(VarType::open_array(context.has(1)));
  std::optional<DDim> slot;
  if (attributes.has("shape")) slot = DDim(attributes.get<Ints>("shape"));
  context.result(VarType::array_of(attributes.get<DType>("dtype"), slot, context.has(1)));
}

TensorArray make_array(const OpContext& context, std::optional<std::int64_t> window) {
  if (window) return TensorArray::window(*window);
  if (!context.has(0)) return TensorArray::growable();
  return context.has(1) ? TensorArray(SlotIndex(context.tensor(0)), context.in(1).order()) : TensorArray(context.tensor(0));
}

/// The known type of a slot; where no slot will say more, with the given extents.
DDim slot_dims(const OpContext& run, const TensorArray& array, DDim dims) {
  if (!run.has(2) || (array.is_fixed() && array.size() > 0)) return dims;
  const std::vector<std::int64_t> given = run.integers(2);
  for (int axis = 0; axis < dims.rank() && std::cmp_less(axis, given.size()); ++axis) {
    const std::int64_t extent = given[static_cast<std::size_t>(axis)];
    if (extent < 0) throw ShapeError(array.to_string() + ": expected extents of 0 or more for a slot, found " + list_text(given));
    if (dims[axis] == DDim::unknown) dims[axis] = extent;
  }
  return dims;
}

OpKernel prepare_tensor_array(const PrepareContext& context) {
  const Attributes& attributes = context.attributes();
  const auto& var = context.program().var(context.op().outputs.at(0));
  const auto window = window_of(attributes);
  // By now all writes are known, and with them what a slot is: an array that nobody writes in this run still has a
  // dtype and a shape.
  return [name = attributes.get_or("name", var.name), type = var.type, window](OpContext& run) {
    const TensorArray array = make_array(run, window).named(name);
    run.set(0, type.open || !type.shape ? array : array.of(type.dtype, slot_dims(run, array, *type.shape), type.lod_depth));
  };
}

OpDef tensor_array_op() {
  OpDef def = array_op("tensor_array", {"Size?", "Order?", "Extents?"}, {"Array"}, infer_tensor_array,
                       {"dtype", "shape", "growable", "window", "name"});
  def.prepare = prepare_tensor_array;
  def.host_inputs = {0, 2};
  def.pure = false;
  return def;
}

// ---- Writing and reading: run by array_ops.cpp ----

void expect_storable(const InferContext& context, std::size_t array, std::size_t value) {
  const VarType& slot = array_type(context, array);
  const VarType& stored = context.tensor(value);
  if (slot.open) return;
  VarType wanted = value_type(slot);
  VarType found = stored;
  // Slots may differ in rows.
  if (wanted.rank() > 0) (*wanted.shape)[0] = DDim::unknown;
  wanted.ordered = found.ordered = false;
  if (!fits(found, wanted))
    throw ProgramError("expected " + wanted.to_string() + " as in " + context.describe(array) + ", found " + context.describe(value));
}

OpDef write_op() {
  OpDef def = array_op("tensor_array_write", {"Array", "Index", "X"}, {}, [](InferContext& context) {
    expect_place(context, 1);
    expect_storable(context, 0, 2);
  });
  def.attributes = {"share", "kept", "spill"};
  def.host_inputs = {1};
  def.stores = std::pair<std::size_t, std::size_t>(0, 2);
  def.pure = false;
  return def;
}

OpDef append_op() {
  OpDef def = array_op("tensor_array_append", {"Array", "X"}, {}, [](InferContext& context) { expect_storable(context, 0, 1); });
  def.attributes = {"share"};
  def.stores = std::pair<std::size_t, std::size_t>(0, 1);
  def.pure = false;
  return def;
}

void infer_read(InferContext& context) {
  expect_place(context, 1);
  if (!context.has(2)) return context.result(value_type(slot_type(context, 0)));
  const VarType& array = array_type(context, 0);
  VarType boot = tensor_type(context.tensor(2).dtype, context.tensor(2).shape);
  boot.lod_depth = context.tensor(2).lod_depth;
  boot.ordered = array.ordered;
  // The boot has a row for each sequence, a slot one for each that still lives.
  if (array.ordered && boot.rank() > 0) (*boot.shape)[0] = DDim::unknown;
  if (array.open) return context.result(std::move(boot));
  const VarType slot = value_type(array);
  if (slot.dtype != boot.dtype || slot.lod_depth != boot.lod_depth || (slot.shape && boot.shape && slot.rank() != boot.rank()))
    throw ProgramError("expected a boot like the slots of " + context.describe(0) + ", found " + context.describe(2));
  VarType both = common(slot, boot);
  both.ordered = array.ordered;
  context.result(std::move(both));
}

OpDef read_op() {
  OpDef def = array_op("tensor_array_read", {"Array", "Index", "Boot?"}, {"Out"}, infer_read, {"read_ahead"});
  def.host_inputs = {1};
  return def;
}

OpDef size_op() {
  return array_op("tensor_array_size", {"Array"}, {"Out"}, [](InferContext& context) {
    array_type(context, 0);
    context.result(VarType(DType::i64, DDim{}));
  });
}

OpDef has_op() {
  OpDef def = array_op("tensor_array_has", {"Array", "Index"}, {"Out"}, [](InferContext& context) {
    array_type(context, 0);
    expect_place(context, 1);
    context.result(VarType(DType::boolean, DDim{}));
  });
  def.host_inputs = {1};
  return def;
}

// ---- All slots ----

void expect_plain_slots(const InferContext& context, const VarType& slot) {
  if (slot.lod_depth > 0)
    throw ProgramError("would silently lose the LoD of the slots of " + context.describe(0) + ": use tensor_array_concat or pack");
}

void infer_stack(InferContext& context) {
  const VarType& slot = slot_type(context, 0);
  expect_plain_slots(context, slot);
  if (!slot.shape) return context.result(VarType::unranked(slot.dtype));
  const int axis = checked_axis(context.attributes().get_or("axis", std::int64_t{0}), slot.rank() + 1);
  context.result(VarType(slot.dtype, slot.shape->inserted(axis, DDim::unknown)));
}

void infer_concat(InferContext& context) {
  const VarType& slot = slot_type(context, 0);
  if (slot.rank() == 0) throw ProgramError("expected slots that have rows, found " + context.describe(0) + ": use tensor_array_stack");
  VarType rows = tensor_type(slot.dtype, slot.shape);
  if (rows.shape) (*rows.shape)[0] = DDim::unknown;
  rows.lod_depth = slot.lod_depth;
  context.result(std::move(rows));
}

OpDef gather_op() {
  OpDef def = array_op("tensor_array_gather", {"Array", "Index"}, {"Out"}, [](InferContext& context) {
    const VarType& slot = slot_type(context, 0);
    expect_plain_slots(context, slot);
    expect_index(context, 1);
    const std::int64_t count = list_length(context, 1);
    if (!slot.shape) return context.result(VarType::unranked(slot.dtype));
    context.result(VarType(slot.dtype, slot.shape->inserted(0, count)));
  });
  def.host_inputs = {1};
  return def;
}

// ---- Arrays of what is there ----

void expect_plain(const InferContext& context, std::size_t input) {
  if (context.tensor(input).lod_depth > 0)
    throw ProgramError("expected rows without LoD, found " + context.describe(input) + ": use unpack, or drop_lod first");
  if (context.tensor(input).rank() == 0) throw ProgramError("expected a tensor that has rows, found " + context.describe(input));
}

int unstack_axis(const Attributes& attributes, int rank) { return checked_axis(attributes.get_or("axis", std::int64_t{0}), rank); }

OpDef unstack_op() {
  OpDef def = array_op("tensor_array_unstack", {"X"}, {"Array"}, [](InferContext& context) {
    expect_plain(context, 0);
    const VarType& x = context.tensor(0);
    std::optional<DDim> slot;
    if (x.shape) slot = x.shape->erased(unstack_axis(context.attributes(), x.rank()));
    context.result(VarType::array_of(x.dtype, slot, false));
  });
  def.attributes = {"axis"};
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(context.attributes().get_or("axis", std::int64_t{0}));
    const std::string name = context.program().var(context.op().outputs.at(0)).name;
    return [axis, name](OpContext& run) {
      const Tensor& x = run.tensor(0);
      // Along another axis than the first, one copy of all is cheaper than a view of each slot.
      std::vector<int> axes{x.dims().checked_axis(axis)};
      for (int other = 0; other < x.rank(); ++other)
        if (other != axes[0]) axes.push_back(other);
      const Tensor first = axes[0] == 0 ? x : x.permute(axes);
      run.set(0, TensorArray::unstack(axes[0] == 0 || first.is_contiguous() ? first : clone(first, run.stream()), 0).named(name));
    };
  };
  return def;
}

VarType array_of_rows(const VarType& x) {
  std::optional<DDim> slot = x.shape;
  if (slot) (*slot)[0] = DDim::unknown;
  return VarType::array_of(x.dtype, slot, false);
}

OpDef split_op() {
  OpDef def = array_op("tensor_array_split", {"X", "Lengths"}, {"Array"}, [](InferContext& context) {
    expect_plain(context, 0);
    expect_index(context, 1);
    list_length(context, 1);
    context.result(array_of_rows(context.tensor(0)));
  });
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const std::string name = context.program().var(context.op().outputs.at(0)).name;
    return [name](OpContext& run) { run.set(0, TensorArray::split(run.tensor(0), run.integers(1)).named(name)); };
  };
  def.host_inputs = {1};
  return def;
}

OpDef scatter_op() {
  OpDef def = array_op("tensor_array_scatter", {"Index", "X"}, {"Array"}, [](InferContext& context) {
    expect_index(context, 0);
    expect_plain(context, 1);
    const VarType& x = context.tensor(1);
    if (list_length(context, 0) != DDim::unknown) expect_extent(context, 1, 0, list_length(context, 0));
    std::optional<DDim> slot;
    if (x.shape) slot = x.shape->erased(0);
    context.result(VarType::array_of(x.dtype, slot, false));
  });
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const std::string name = context.program().var(context.op().outputs.at(0)).name;
    return [name](OpContext& run) {
      const std::vector<std::int64_t> places = run.integers(0);
      const std::int64_t size = places.empty() ? 0 : checked_add(*std::max_element(places.begin(), places.end()), std::int64_t{1});
      const TensorArray array = TensorArray(size).named(name);
      array.scatter(places, run.tensor(1));
      array.close();
      run.set(0, array);
    };
  };
  def.host_inputs = {0};
  return def;
}

}  // namespace

void add_array_ops(OpRegistry& registry) {
  registry.add(tensor_array_op());
  registry.add(write_op());
  registry.add(append_op());
  registry.add(read_op());
  registry.add(size_op());
  registry.add(has_op());
  registry.add(array_op("tensor_array_stack", {"Array"}, {"Out"}, infer_stack, {"axis"}));
  registry.add(array_op("tensor_array_concat", {"Array"}, {"Out"}, infer_concat));
  registry.add(gather_op());
  registry.add(unstack_op());
  registry.add(split_op());
  registry.add(scatter_op());
}

}  // namespace millrace::ops
