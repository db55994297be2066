// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/models/export/with_onnx/rules.h>

namespace millrace::exporting {
namespace {

using Form = ArrayState::Form;

// ---- Making arrays ----

void tensor_array(Exporter& to, const Op& op, const char*) {
  if (op.attributes.has("window")) throw UnsupportedError("a window has no counterpart");
  to.set_array(op.outputs[0], {.form = Form::unwritten, .size = Exporter::has(op, 0) ? to.scalar(op.inputs[0]) : ""});
}

void unstack(Exporter& to, const Op& op, const char*) {
  const std::int64_t axis = op.attributes.get_or("axis", std::int64_t{0});
  std::string x = to.in(op, 0);
  if (axis != 0) {
    const int rank = to.rank(op, 0);
    Ints perm{axis < 0 ? axis + rank : axis};
    for (std::int64_t i = 0; i < rank; ++i)
      if (i != perm[0]) perm.push_back(i);
    x = to.node("Transpose", {x}, {{"perm", perm}});
  }
  to.set_array(op.outputs[0], {.form = Form::stacked, .value = x});
}

void split(Exporter& to, const Op& op, const char*) {
  to.set_array(op.outputs[0], {.form = Form::list, .value = to.node("SplitToSequence", to.all_in(op), {{"axis", std::int64_t{0}}})});
}

void scatter(Exporter& to, const Op& op, const char*) {
  const std::string x = to.in(op, 1);
  const std::string index = to.node("Cast", {to.in(op, 0)}, {{"to", std::int64_t{onnx_type(DType::i64)}}});
  const std::string most = to.node("ReduceMax", {index}, {{"keepdims", std::int64_t{1}}});
  const std::string extents = to.node("Concat", {to.node("Add", {most, to.ints({1})}), to.node("Shape", {x}, {{"start", std::int64_t{1}}})},
                                      {{"axis", std::int64_t{0}}});
  const std::string room = to.node("Expand", {to.number(to.type(op, 1).dtype, 0), extents});
  to.set_array(op.outputs[0], {.form = Form::slab, .value = to.node("ScatterND", {room, to.node("Unsqueeze", {index, to.ints({1})}), x})});
}

// ---- Slots ----

std::string slot(Exporter& to, const ArrayState& array, const std::string& index) {
  if (array.form == Form::list) return to.node("SequenceAt", {array.value, index});
  return to.node("Gather", {array.value, index}, {{"axis", std::int64_t{0}}});
}

/// Whether a read with a boot is one at n − 1, of an array of n slots.
bool is_last(const Exporter& to, const Op& op) {
  const Op* array = to.maker(to.root(op.inputs[0]));
  const Op* index = to.maker(op.inputs[1]);
  if (!Exporter::has(op, 2) || array == nullptr || index == nullptr || array->type != "tensor_array" || index->type != "sub") return false;
  const Tensor* one = to.program().constant(index->inputs[1]);
  return Exporter::has(*array, 0) && index->inputs[0] == array->inputs[0] && one != nullptr && one->elements() == 1 && one->item() == 1;
}

void read(Exporter& to, const Op& op, const char*) {
  const VarId array = op.inputs[0];
  if (const std::optional<Place> place = to.place_of(op.inputs[1])) {
    if (place->offset == 0)
      if (const std::string* slice = to.found(&Scope::slices, array, place->counter)) return to.bind(op.outputs[0], *slice);
    if (place->offset == -1 && Exporter::has(op, 2))
      if (const std::string* lag = to.found(&Scope::lags, array, place->counter)) return to.bind(op.outputs[0], *lag);
  }
  const ArrayState state = to.array(array);
  if (state.form == Form::unwritten) {
    if (!Exporter::has(op, 2)) throw UnsupportedError("reads an array that nothing has written before");
    return to.bind(op.outputs[0], to.in(op, 2));
  }
  if (is_last(to, op) && state.boot == op.inputs[2]) return to.bind(op.outputs[0], state.last);
  const std::string index = to.scalar(op.inputs[1]);
  if (!Exporter::has(op, 2)) return to.bind(op.outputs[0], slot(to, state, index));
  std::string boot = to.in(op, 2);
  to.bind(op.outputs[0],
          to.choose(
              to.node("Less", {index, to.whole(0)}), to.type(op.outputs[0]), [&] { return boot; }, [&] { return slot(to, state, index); }));
}

void write_at(Exporter& to, const Op& op, VarId value, const std::string& index) {
  const VarId array = op.inputs[0];
  if (Scope* iteration = to.scanning(array)) {
    iteration->written[to.root(array)] = to.name(value);
    return;
  }
  to.make_general(array);
  ArrayState state = to.array(array);
  const std::string x = to.name(value);
  if (state.form == Form::slab) {
    if (index.empty()) throw UnsupportedError("appends to an array whose slots are numbered");
    state.value =
        to.node("ScatterND", {state.value, to.node("Reshape", {index, to.ints({1, 1})}), to.node("Unsqueeze", {x, to.ints({0})})});
  } else {
    state.value = to.node("SequenceInsert", index.empty() ? Names{state.value, x} : Names{state.value, x, index});
  }
  to.set_array(array, state);
}

void write(Exporter& to, const Op& op, const char*) {
  write_at(to, op, op.inputs[2], to.scanning(op.inputs[0]) ? "" : to.scalar(op.inputs[1]));
}
void append(Exporter& to, const Op& op, const char*) { write_at(to, op, op.inputs[1], ""); }

void size(Exporter& to, const Op& op, const char*) {
  const ArrayState& state = to.array(op.inputs[0]);
  if (!state.size.empty()) return to.bind(op.outputs[0], state.size);
  if (state.form == Form::unwritten) return to.bind(op.outputs[0], to.whole(0));
  to.bind(op.outputs[0], state.form == Form::list ? to.node("SequenceLength", {state.value}) : to.length_of(state.value));
}

// ---- All slots ----

/// [n, slot…]
std::string stacked(Exporter& to, VarId array) {
  const ArrayState& state = to.array(array);
  if (state.form == Form::unwritten) throw UnsupportedError("joins the slots of an array that nothing has written before");
  if (state.form != Form::list) return state.value;
  return to.node("ConcatFromSequence", {state.value}, {{"axis", std::int64_t{0}}, {"new_axis", std::int64_t{1}}});
}

void stack(Exporter& to, const Op& op, const char*) {
  const std::int64_t axis = op.attributes.get_or("axis", std::int64_t{0});
  if (axis == 0) return to.bind(op.outputs[0], stacked(to, op.inputs[0]));
  const VarType& of = to.type(op.outputs[0]);
  if (of.rank() < 0) throw UnsupportedError("expected slots of a known rank along another axis than 0");
  const std::int64_t at = axis < 0 ? axis + of.rank() : axis;
  Ints perm;
  for (std::int64_t i = 1; i < of.rank(); ++i) perm.push_back(i);
  perm.insert(perm.begin() + at, 0);
  to.give(op, "Transpose", {stacked(to, op.inputs[0])}, {{"perm", perm}});
}

/// Rows of all slots, one behind the other.
std::string joined(Exporter& to, VarId array) {
  const ArrayState& state = to.array(array);
  if (state.form == Form::list) return to.node("ConcatFromSequence", {state.value}, {{"axis", std::int64_t{0}}});
  const std::string all = stacked(to, array);
  const std::string rest = to.node("Shape", {all}, {{"start", std::int64_t{2}}});
  const std::string rows = to.node("ReduceProd", {to.node("Shape", {all}, {{"start", std::int64_t{0}}, {"end", std::int64_t{2}}})});
  const std::string extents = to.node("Concat", {rows, rest}, {{"axis", std::int64_t{0}}});
  return to.node("Reshape", {all, extents}, {{"allowzero", std::int64_t{1}}});
}

void concat(Exporter& to, const Op& op, const char*) { to.bind(op.outputs[0], joined(to, op.inputs[0])); }

void gather(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, {stacked(to, op.inputs[0]), to.in(op, 1)}, {{"axis", std::int64_t{0}}});
}

// ---- One sequence: what unpack and its like are for a batch of one ----

bool reversed(const Exporter& to, VarId order) {
  const Op* made = to.maker(to.root(order));
  return made != nullptr && made->attributes.get_or("reverse", false);
}

void expect_rows_of_one_sequence(const Exporter& to, const Op& op) {
  const VarType& of = to.type(op, 0);
  if (of.lod_depth != 1 || op.attributes.get_or("level", std::int64_t{0}) != 0)
    throw UnsupportedError("expected rows of one level of LoD, found " + of.to_string());
}

void unpack(Exporter& to, const Op& op, const char*) {
  expect_rows_of_one_sequence(to, op);
  const std::string x = op.attributes.get_or("reverse", false) ? to.flipped(to.in(op, 0), 0) : to.in(op, 0);
  to.set_array(op.outputs[0], {.form = Form::stacked, .value = to.node("Unsqueeze", {x, to.ints({1})})});
}

/// Each slot is one row. A reshape where the extents are known: of no slots not even that is known that they have one row.
std::string packed(Exporter& to, VarId array, const VarType& rows) {
  if (to.array(array).form == Form::list) return joined(to, array);
  Ints extents = rows.shape ? Ints(rows.shape->begin(), rows.shape->end()) : Ints{DDim::unknown, DDim::unknown};
  extents[0] = 0;
  if (std::find(extents.begin(), extents.end(), DDim::unknown) != extents.end())
    return to.node("Squeeze", {stacked(to, array), to.ints({1})});
  return to.node("Reshape", {stacked(to, array), to.ints(extents)});
}

void pack(Exporter& to, const Op& op, const char*) {
  if (op.attributes.get_or("level", std::int64_t{0}) != 0) throw UnsupportedError("expected level 0");
  const std::string rows = packed(to, op.inputs[0], to.type(op.outputs[0]));
  to.bind(op.outputs[0], reversed(to, op.inputs[1]) ? to.flipped(rows, 0) : rows);
}

/// A batch of one neither shrinks nor changes its order.
void pass(Exporter& to, const Op& op, const char*) { to.bind(op.outputs[0], to.in(op, 0)); }

void constant_rows(Exporter& to, const Op& op, const char*) {
  Ints extents{1};
  for (const std::int64_t extent : op.attributes.get_or("shape", Ints{})) extents.push_back(extent);
  const DType dtype = op.attributes.get_or("dtype", DType::f32);
  to.give(op, "Expand", {to.number(dtype, op.attributes.get_or("value", 0.0)), to.ints(extents)});
}

void last_rows(Exporter& to, const Op& op, const char*) {
  const std::string boot = to.in(op, 2);
  const ArrayState& state = to.array(op.inputs[0]);
  if (state.boot == op.inputs[2]) return to.bind(op.outputs[0], state.last);
  // The boot before all slots: it is the last one where there is no step.
  if (state.form == Form::list)
    return to.give(op, "SequenceAt", {to.node("SequenceInsert", {state.value, boot, to.whole(0)}), to.whole(-1)});
  const std::string all =
      to.node("Concat", {to.node("Unsqueeze", {boot, to.ints({0})}), stacked(to, op.inputs[0])}, {{"axis", std::int64_t{0}}});
  to.give(op, "Gather", {all, to.whole(-1)}, {{"axis", std::int64_t{0}}});
}

/// Range(T) < lengths, as [T, N, 1].
void step_mask(Exporter& to, const Op& op, const char*) {
  const std::string steps = to.node("Range", {to.whole(0), to.length_of(to.in(op, 0)), to.whole(1)});
  const std::string lengths = to.node("Cast", {to.in(op, 1)}, {{"to", std::int64_t{onnx_type(DType::i64)}}});
  to.give(op, "Less", {to.node("Unsqueeze", {steps, to.ints({1, 2})}), to.node("Unsqueeze", {lengths, to.ints({0, 2})})});
}

constexpr Rule array_table[] = {
    {"tensor_array", tensor_array},
    {"tensor_array_unstack", unstack},
    {"tensor_array_split", split},
    {"tensor_array_scatter", scatter},
    {"tensor_array_read", read},
    {"tensor_array_write", write},
    {"tensor_array_append", append},
    {"tensor_array_size", size},
    {"tensor_array_stack", stack},
    {"tensor_array_concat", concat},
    {"tensor_array_gather", gather, "Gather"},
    {"unpack", unpack},
    {"split_lod_tensor_to_timesteps", unpack},
    {"pack", pack},
    {"restore_lod_tensor_from_timesteps", pack},
    {"shrink", pass},
    {"reorder", pass},
    {"same_steps", pass},
    {"drop_lod", pass},
    {"constant_rows", constant_rows},
    {"last_rows", last_rows},
    {"step_mask", step_mask},
    {"while", [](Exporter& to, const Op& op, const char*) { to.loop(op); }},
    {"if", [](Exporter& to, const Op& op, const char*) { to.branch(op); }},
    {"break_if", [](Exporter&, const Op&, const char*) {}},
};

}  // namespace

std::span<const Rule> array_rules() { return array_table; }

}  // namespace millrace::exporting
