// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <millrace/runtime/lowering/internal/step_builder.h>
#include <millrace/runtime/program/fold_constants.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::lowering {
namespace {

using Ints = std::vector<std::int64_t>;

std::optional<std::int64_t> constant_integer(const Symbol& symbol) {
  if (!symbol.is(Symbol::Kind::constant) || is_floating(symbol.value.dtype()) || symbol.value.elements() != 1) return std::nullopt;
  return symbol.value.item_int();
}

/// Whether the op takes or gives an array or an order.
bool on_arrays(const Program& program, const Op& op) {
  const auto plain = [&](VarId id) { return id == no_var || program.var(id).type.is_tensor(); };
  return !std::all_of(op.inputs.begin(), op.inputs.end(), plain) || !std::all_of(op.outputs.begin(), op.outputs.end(), plain);
}

}  // namespace

/// Exporters leave unread ops behind, such as the shape of live rows: an op that is refused matters only where it is read.
void StepBuilder::find_used() {
  used_.assign(program_.vars().size(), false);
  const auto mark = [&](VarId var) {
    const bool fresh = var != no_var && !used_[static_cast<std::size_t>(var)];
    if (fresh) used_[static_cast<std::size_t>(var)] = true;
    return fresh;
  };
  for (const Program::Port& port : program_.outputs()) mark(port.var);
  for (const Block& block : program_.blocks()) std::for_each(block.results.begin(), block.results.end(), mark);
  // A block reads the vars of those around it, and comes behind them.
  for (bool more = true; more;) {
    more = false;
    for (auto block = program_.blocks().rbegin(); block != program_.blocks().rend(); ++block)
      for (auto op = block->ops.rbegin(); op != block->ops.rend(); ++op)
        if (!unused(*op))
          for (std::size_t i = 0; i < op->inputs.size(); ++i)
            if (op->type != "tensor_array" || i != 2) more = mark(op->inputs[i]) || more;  // live steps tell their extents themselves
  }
}

/// Whether an op that only computes has no reader.
bool StepBuilder::unused(const Op& op) const {
  const OpDef& def = program_.registry().at(op.type);
  if (!def.pure || !def.prepare || def.stores || on_arrays(program_, op)) return false;
  return std::none_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) { return used_[static_cast<std::size_t>(output)]; });
}

void StepBuilder::eval_block(int block) {
  for (const Op& op : program_.block(block).ops) eval(op, block);
}

void StepBuilder::eval(const Op& op, int block) {
  if (op.type == "constant" || unused(op)) return;
  if (op.type == "while") return eval_while(op);
  if (op.type == "if") return eval_branch(op);
  if (op.type == "break_if") {
    if (input(op, 0).is(Kind::running)) return;
    refuse(op, "ends the loop by its data, not by the length of the sequence");
  }
  if (op.type == "shrink") {
    // One row for each sequence of the loop becomes one for each of its items.
    Symbol alive = input(op, 0);
    if (alive.is(Kind::step) || alive.is(Kind::session)) alive.clock = std::max(loop_level_ + 1, 1);
    return bind(op.outputs[0], std::move(alive));
  }
  if (op.type == "drop_lod") return bind(op.outputs[0], input(op, 0));
  if (op.type == "same_steps") return eval_same_steps(op);
  if (on_arrays(program_, op)) return eval_array_op(op);
  if (eval_extents(op) || eval_control(op)) return;
  if (op.type == "slice_by" && eval_padding(op, {input(op, 0)})) return;  // its ends may be the length of the sequence
  eval_generic(op, block);
}

/// Arithmetic on step numbers and lengths, as far as it steers loops. False: not of that kind.
bool StepBuilder::eval_control(const Op& op) {
  const auto counts = [](const Symbol& s) {
    return s.is(Kind::counter) || s.is(Kind::length) || (s.is(Kind::extents) && s.value.elements() == 1);
  };
  const auto steers = [&](const Symbol& s) { return counts(s) || s.is(Kind::running); };
  const Symbol a = input(op, 0);
  const Symbol b = input(op, 1);
  if (!steers(a) && !steers(b)) return false;
  const auto rows = [](const Symbol& s) { return s.is(Kind::length) && s.offset == 0; };
  if (program_.registry().at(op.type).traits.comparison != OpTraits::Comparison::none && (rows(a) || rows(b))) {
    bind(op.outputs[0], Symbol{.kind = Kind::running, .level = rows(a) ? a.level : b.level, .origin = "the length of the sequence"});
    return true;
  }
  if ((op.type == "logical_not" || op.type == "identity" || op.type == "cast") && a.is(Kind::running)) {
    bind(op.outputs[0], a);
    return true;
  }
  if (a.is(Kind::length) &&
      (op.type == "identity" || op.type == "cast" || op.type == "reshape" || op.type == "squeeze" || op.type == "unsqueeze")) {
    bind(op.outputs[0], a);
    return true;
  }
  if (a.is(Kind::counter) && op.type == "identity") {
    bind(op.outputs[0], a);
    return true;
  }
  // Arrays of the rows of several inputs are equally long: a Scan over them goes on while one has a step.
  if ((op.type == "maximum" || op.type == "minimum") && a.is(Kind::length) && b.is(Kind::length) && a.offset == b.offset &&
      a.level == b.level) {
    bind(op.outputs[0], a);
    return true;
  }
  // A number of rows is at least 0.
  const auto least = constant_integer(a.is(Kind::length) ? b : a);
  const Symbol& length = a.is(Kind::length) ? a : b;
  if (op.type == "maximum" && length.is(Kind::length) && length.offset == 0 && least && *least <= 0) {
    bind(op.outputs[0], length);
    return true;
  }
  if (op.type == "mul" && (constant_integer(a) == 1 || constant_integer(b) == 1)) {
    bind(op.outputs[0], constant_integer(a) == 1 ? b : a);
    return true;
  }
  const OpTraits::Arithmetic arithmetic = program_.registry().at(op.type).traits.arithmetic;
  const bool adds = arithmetic == OpTraits::Arithmetic::add;
  if ((adds || arithmetic == OpTraits::Arithmetic::subtract) && counts(a) && constant_integer(b)) {
    Symbol moved = a;
    moved.offset += adds ? *constant_integer(b) : -*constant_integer(b);
    bind(op.outputs[0], std::move(moved));
    return true;
  }
  if (adds && counts(b) && constant_integer(a)) {
    Symbol moved = b;
    moved.offset += *constant_integer(a);
    bind(op.outputs[0], std::move(moved));
    return true;
  }
  return false;
}

void StepBuilder::eval_generic(const Op& op, int block) {
  std::vector<Symbol> inputs;
  for (const VarId id : op.inputs) {
    Symbol symbol = at(id);
    if (symbol.is(Kind::counter)) symbol = counter_value(symbol);
    if (symbol.is(Kind::length) || symbol.is(Kind::running) || symbol.is(Kind::extents))
      refuse(op, "depends on the length of the sequence, which is known only at its end");
    if (symbol.is(Kind::final)) return bind_final(op, symbol);
    if (symbol.is(Kind::array) || symbol.is(Kind::order)) refuse(op, "takes an array where a step has none");
    inputs.push_back(std::move(symbol));
  }
  if (op.attributes.get_or("winograd", false) && inputs[0].has_row_each_step())
    refuse(op, "may make rows of its results together, with other bits than one by one");
  if (op.type == "conv1d" && inputs[0].rows == 2) return eval_conv(op, inputs);
  if (op.type == "sequence_conv" && inputs[0].rows == 0) return eval_sequence_conv(op, inputs);
  if (op.type == "sequence_pool" && eval_pool(op, inputs)) return;
  if (op.type == "cumsum" && eval_running_sum(op, inputs[0])) return;
  if (op.type == "squeeze" && eval_squeeze(op, inputs[0], block)) return;
  if (eval_padding(op, inputs)) return;
  if (!ragged_) align(inputs);
  expect_same_rows(op, inputs);
  const Symbol* first = nullptr;
  for (const Symbol& symbol : inputs) {
    if (!symbol.is(Kind::step) || symbol.rows < 0) continue;
    if (first != nullptr && first->clock != symbol.clock)
      refuse(op, fmt::format("puts rows that have {} levels above them beside rows that have {}", first->clock, symbol.clock));
    first = &symbol;
  }
  const std::vector<int> rows = follow_rows(op, block, inputs);
  std::vector<Symbol> outputs = emit(op, inputs);
  const std::vector<Symbol> before = changes_rows_before(op, inputs) ? made_of_rows_before(op, inputs) : std::vector<Symbol>();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].rows = outputs[i].is(Kind::step) ? rows.at(i) : -1;
    for (const Symbol& symbol : inputs) {
      if (symbol.has_row_each_step() || outputs[i].rows < 0) continue;
      outputs[i].left_pad = symbol.left_pad;
      outputs[i].right_pad = symbol.right_pad;
      outputs[i].first = symbol.first;
      outputs[i].deviates = symbol.deviates;
      if (!before.empty()) take_before(outputs[i], before[i]);
    }
    bind(op.outputs[i], std::move(outputs[i]));
  }
}

/// A squeeze that names no axes leaves the axis of the rows, whose extent in a step says nothing of the sequence. False: not of that kind.
bool StepBuilder::eval_squeeze(const Op& op, const Symbol& x, int block) {
  const std::optional<DDim>& shape = program_.var(op.inputs[0]).type.shape;
  if (!x.is(Kind::step) || x.rows < 0 || !shape || !op.attributes.get_or("axes", std::vector<std::int64_t>{}).empty()) return false;
  std::vector<std::int64_t> axes;
  for (int axis = 0; axis < shape->rank(); ++axis) {
    if (axis == x.rows) continue;
    if ((*shape)[axis] == DDim::unknown) return false;
    if ((*shape)[axis] == 1) axes.push_back(axis);
  }
  Op named = op;
  named.type = axes.empty() ? "identity" : "squeeze";
  named.attributes = axes.empty() ? Attributes() : Attributes{{"axes", axes}};
  eval_generic(named, block);
  return true;
}

/// A value that depends on the end of the sequence is known only then.
void StepBuilder::bind_final(const Op& op, const Symbol& input) {
  for (const VarId output : op.outputs) bind(output, Symbol{.kind = Kind::final, .origin = input.origin});
}

/// Whether the block is one of `blocks`, or inside one.
bool StepBuilder::is_inside(int block, const std::vector<int>& blocks) const {
  while (block >= 0 && std::find(blocks.begin(), blocks.end(), block) == blocks.end()) block = program_.block(block).parent_idx;
  return block >= 0;
}

/// Only the end of the sequence tells which iterations of a loop run, or which branch: so its outputs, and the arrays that `blocks` or the
/// blocks inside them write, are known only then.
void StepBuilder::bind_decided_late(const Op& op, const std::vector<int>& blocks, const Symbol& decision) {
  const auto mark = [&](VarId var) {
    const auto found = var == no_var ? symbols_.end() : symbols_.find(var);
    if (found != symbols_.end() && found->second.is(Kind::array)) found->second.array->decided_late = decision;
  };
  for (const VarId input : op.inputs) mark(input);
  for (const Block& block : program_.blocks()) {
    if (!is_inside(block.idx, blocks)) continue;
    for (const Op& inner : block.ops)
      if (inner.type == "tensor_array_write" || inner.type == "tensor_array_append") mark(inner.inputs[0]);
  }
  bind_final(op, decision);
}

/// Where the rows lie in the outputs; refuses what needs other rows than its own.
std::vector<int> StepBuilder::follow_rows(const Op& op, int block, const std::vector<Symbol>& inputs) const {
  std::vector<int> axes;
  for (const Symbol& symbol : inputs) axes.push_back(symbol.rows);
  if (std::all_of(axes.begin(), axes.end(), [](int axis) { return axis < 0; })) return std::vector<int>(op.outputs.size(), -1);
  const OpDef& def = program_.registry().at(op.type);
  if (!def.follow_rows) refuse(op, "does not say how it treats rows");
  try {
    return def.follow_rows(InferContext(program_, op, block), axes);
  } catch (const UnsupportedError& error) {
    if (op.type == "shape" || op.type == "size") refuse(op, "asks for the number of rows, which is known only at the end of the sequence");
    refuse(op, error.what());
  }
}

/// One op on constants, whose vars in the program are of no matter: weights of a program of its own.
std::vector<Tensor> StepBuilder::fold(const Op& op, const std::vector<const Tensor*>& inputs) const {
  Program one(program_.shared_registry());
  Op copied{op.type, {}, {}, op.attributes, op.label};
  for (const Tensor* input : inputs) copied.inputs.push_back(input == nullptr ? no_var : one.add_parameter("in", *input));
  one.append(0, std::move(copied));
  return evaluate_op(one, one.block(0).ops[0], inputs);
}

/// Folds, or appends to the program of the earliest phase in which all inputs are known.
std::vector<Symbol> StepBuilder::emit(const Op& op, const std::vector<Symbol>& inputs) {
  const OpDef& def = program_.registry().at(op.type);
  const auto all = [&](auto&& good) { return std::all_of(inputs.begin(), inputs.end(), good); };
  std::vector<Symbol> made;
  if ((op.type == "shape" || op.type == "size") && type_of(inputs[0]).is_static()) {
    Tensor extents(DType::u8, *type_of(inputs[0]).shape);
    extents.storage()->mark_written();
    for (Tensor& value : fold(op, {&extents})) made.push_back({.kind = Kind::constant, .value = std::move(value)});
    return made;
  }
  if (def.pure && all([](const Symbol& s) { return s.is(Kind::constant) || s.is(Kind::none); })) {
    std::vector<const Tensor*> values;
    for (const Symbol& symbol : inputs) values.push_back(symbol.is(Kind::none) ? nullptr : &symbol.value);
    for (Tensor& value : fold(op, values)) made.push_back({.kind = Kind::constant, .value = std::move(value)});
    return made;
  }
  int phase = 0, clock = 0;
  for (const Symbol& symbol : inputs) {
    phase = std::max(phase, symbol.phase);
    clock = std::max(clock, symbol.clock);
  }
  Program& into = programs_[static_cast<std::size_t>(phase)];
  std::vector<VarId> ids;
  for (const Symbol& symbol : inputs) ids.push_back(var_in(phase, symbol));
  std::vector<std::string> names;
  for (const VarId output : op.outputs) names.push_back(program_.var(output).name);
  std::vector<VarId> appended;
  try {
    appended = into.append(0, Op{op.type, ids, {}, op.attributes, op.label}, names);
  } catch (const ProgramError& error) {
    refuse(op, std::string("does not go row by row: ") + error.what());
  }
  for (const VarId id : appended)
    made.push_back(
        {.kind = phase == 0 ? Kind::session : Kind::step, .var = id, .phase = phase, .clock = clock, .origin = into.var(id).name});
  return made;
}

/// An op of our own making.
std::vector<Symbol> StepBuilder::apply(const std::string& type, const std::vector<Symbol>& inputs, const Attributes& attributes, int rows) {
  std::vector<Symbol> made = emit(Op{type, {}, {}, attributes, {}}, inputs);
  for (Symbol& symbol : made) symbol.rows = symbol.is(Kind::step) ? rows : -1;
  return made;
}

void StepBuilder::eval_branch(const Op& op) {
  const Symbol condition = input(op, 0);
  const auto block_of = [&](bool yes) { return op.attributes.get<BlockId>(yes ? "then_block" : "else_block").index; };
  if (condition.is(Kind::final)) return bind_decided_late(op, {block_of(true), block_of(false)}, condition);
  // Where states are named, an input that never changes comes with each step.
  const bool may_be_fixed = condition.is(Kind::session) || (condition.is(Kind::step) && axis_ < 0);
  if (may_be_fixed)
    refuse(op,
           "chooses by what is known only while the program runs: where that is an input which never changes, make it a constant (--const "
           "INPUT=NUMBER, OnnxOptions::constants)");
  if (condition.is(Kind::running)) refuse(op, "chooses by the length of the sequence, which is known only at its end");
  if (!condition.is(Kind::constant)) refuse(op, "chooses by a row or by the number of the step, and steps choose nothing");
  const int block = block_of(condition.value.item() != 0.0);
  eval_block(block);
  const Block& branch = program_.block(block);
  for (std::size_t i = 0; i < op.outputs.size(); ++i) bind(op.outputs[i], at(branch.results[i]));
}

// ---- Arrays ----

void StepBuilder::eval_array_op(const Op& op) {
  const Symbol first = input(op, 0);
  const std::string& type = op.type;
  if (first.is(Kind::array) && first.array->decided_late.is(Kind::final)) return bind_final(op, first.array->decided_late);
  if (first.is(Kind::final) && !program_.var(op.inputs[0]).type.is_tensor()) return bind_final(op, first);
  if (type == "tensor_array_read") return eval_read(op);
  if (type == "tensor_array_write") return eval_write(op, input(op, 1), input(op, 2));
  if (type == "tensor_array_stack" || type == "tensor_array_concat" || type == "pack" || type == "restore_lod_tensor_from_timesteps")
    return eval_joined(op);
  if (eval_ordered(op)) return;
  auto model = std::make_shared<ArrayModel>();
  model->name = op.attributes.get_or<std::string>("name", op.outputs.empty() ? "array" : program_.var(op.outputs[0]).name);
  if (type == "tensor_array") {
    if (first.is(Kind::constant)) model->size = constant_integer(first);
    return bind(op.outputs[0], Symbol{.kind = Kind::array, .array = model, .origin = model->name});
  }
  if (type == "unpack" || type == "split_lod_tensor_to_timesteps") {
    if (first.rows != 0 || !first.is(Kind::step)) refuse(op, "takes apart something else than the rows of the input");
    expect_row_each_step(op, first);
    if (op.attributes.get_or("reverse", false)) refuse(op, "takes each sequence from its end, which a live one does not have yet");
    model->of_rows = model->unpacked = true;
    model->source = first;
    model->level =
        first.clock - program_.var(op.inputs[0]).type.lod_depth + static_cast<int>(op.attributes.get_or<std::int64_t>("level", 0));
    bind(op.outputs[1], Symbol{.kind = Kind::order, .level = model->level});
    return bind(op.outputs[0], Symbol{.kind = Kind::array, .array = model, .origin = model->name});
  }
  if (type == "tensor_array_unstack") {
    if (first.is(Kind::final)) return bind_final(op, first);
    const VarType source = type_of(first);
    const auto axis = static_cast<int>(op.attributes.get_or<std::int64_t>("axis", 0));
    model->axis = axis < 0 ? axis + source.rank() : axis;
    expect_row_each_step(op, first);
    if (first.rows >= 0 && first.rows == model->axis) {
      model->of_rows = true;
      model->source = first;
    } else {
      if (!source.is_static()) refuse(op, "unstacks an axis of unknown extent");
      model->size = (*source.shape)[model->axis];
      const int rows = first.rows > model->axis ? first.rows - 1 : first.rows;
      for (std::int64_t i = 0; i < *model->size; ++i) {
        const Symbol slice =
            apply("slice", {first}, {{"starts", Ints{i}}, {"ends", Ints{i + 1}}, {"axes", Ints{model->axis}}, {"steps", Ints{1}}}, rows)[0];
        model->slots[i] = apply("squeeze", {slice}, {{"axes", Ints{model->axis}}}, rows)[0];
      }
    }
    return bind(op.outputs[0], Symbol{.kind = Kind::array, .array = model, .origin = model->name});
  }
  if (type == "tensor_array_size") {
    const ArrayModel& array = *first.array;
    if (array.size) return bind(op.outputs[0], Symbol{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(*array.size)});
    if (array.of_rows || array.over_time || array.slots.empty())
      return bind(op.outputs[0], Symbol{.kind = Kind::length, .level = array.level, .origin = "the length of the sequence"});
    return bind(op.outputs[0], Symbol{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(array.slots.rbegin()->first + 1)});
  }
  if (type == "tensor_array_append") {
    ArrayModel& array = *first.array;
    const auto end = array.slots.empty() ? 0 : array.slots.rbegin()->first + 1;
    const Symbol index = array.over_time ? Symbol{.kind = Kind::counter, .offset = array.write_at, .level = array.level}
                                         : Symbol{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(end)};
    return eval_write(op, index, input(op, 1));
  }
  refuse(op, "is not known to streaming");
}

/// Live inputs take a step together; other inputs have no steps to compare.
void StepBuilder::eval_same_steps(const Op& op) {
  const Symbol x = input(op, 0);
  const Symbol like = input(op, 1);
  if (x.is(Kind::final) || like.is(Kind::final)) return bind_final(op, x.is(Kind::final) ? x : like);
  expect_row_each_step(op, x);
  expect_row_each_step(op, like);
  if (x.rows != like.rows || x.rows < 0) refuse(op, "compares the steps of " + x.origin + " with those of " + like.origin);
  bind(op.outputs[0], x);
}

/// Ops that take an order: one sequence is in any order.
bool StepBuilder::eval_ordered(const Op& op) {
  if (op.type == "last_rows") {
    ArrayModel& array = *input(op, 0).array;
    Symbol last{.kind = Kind::final, .origin = "the last state in '" + input(op, 0).origin + "'"};
    if (array.over_time && array.level > 0) {
      earlier(array, 1, input(op, 2));
      last = state_at(array.lags[0], sequence_closes(array.level), 0, array.level);
      next_[array.lags[0]][item_ends(array.level)] = array.latest;
    }
    bind(op.outputs[0], std::move(last));
    return true;
  }
  if (op.type == "constant_rows") {
    Ints extents = op.attributes.get_or("shape", Ints{});
    extents.insert(extents.begin(), 1);
    const Symbol shape{.kind = Kind::constant, .value = Tensor::from(extents, DDim{static_cast<std::int64_t>(extents.size())})};
    const Tensor value = Tensor::scalar(op.attributes.get_or("value", 0.0));
    const Symbol rows = apply("constant_of_shape", {shape}, {{"value", value}}, -1)[0];
    bind(op.outputs[0], apply("cast", {rows}, {{"to", op.attributes.get_or("dtype", DType::f32)}}, -1)[0]);
    return true;
  }
  if (op.type != "reorder") return false;
  const Symbol x = input(op, 0);
  const int level = input(op, 1).level;
  const bool once = level == 0 ? x.rows < 0 : x.is(Kind::constant) || x.clock == level;
  if (!once) refuse(op, "takes what does not have one row for each sequence as if it had");
  bind(op.outputs[0], x);
  return true;
}

/// The slot step + offset of the array of the live rows: only the present can be read.
Symbol StepBuilder::row_of(const ArrayModel& array, std::int64_t offset) {
  if (offset > 0) throw UnsupportedError(fmt::format("reads {} steps ahead in '{}'", offset, array.name));
  if (offset < 0)
    throw UnsupportedError(
        fmt::format("reads {} steps back in the input '{}': keep what it needs in an array of its own", -offset, array.name));
  if (array.unpacked) return array.source;
  return apply("squeeze", {array.source}, {{"axes", Ints{array.axis}}}, -1)[0];
}

/// The value that a loop over time wrote `lag` ≥ 1 iterations ago: a chain of states.
Symbol StepBuilder::earlier(ArrayModel& array, std::int64_t lag, const Symbol& boot) {
  while (std::cmp_less(array.lags.size(), lag)) {
    const auto back = static_cast<std::int64_t>(array.lags.size()) + 1;
    const std::int64_t index = array.write_at - back;  // at the first step
    const auto slot = array.slots.find(index);
    if (slot == array.slots.end() && (index != -1 || boot.is(Kind::none)))
      throw UnsupportedError(fmt::format("reads slot {} of '{}' at the first step, which nothing wrote", index, array.name));
    const Symbol& initial = slot == array.slots.end() ? boot : slot->second;
    const bool early = initial.is(Kind::constant) || initial.is(Kind::session) || (initial.is(Kind::step) && initial.phase <= array.level);
    if (!early) throw UnsupportedError(fmt::format("the first value of '{}' depends on the rows", array.name));
    if (array.level > 0 && !initial.is(Kind::constant) && initial.clock != array.level)
      throw UnsupportedError(fmt::format("the first value of '{}' has {} levels above a row, and its sequences have {}", array.name,
                                         initial.clock, array.level));
    array.lags.push_back(add_state(array.lags.empty() ? array.name : fmt::format("{} {} ago", array.name, back),
                                   fmt::format("array '{}', read {} back", array.name, back), initial, array.level));
  }
  return state_at(array.lags[static_cast<std::size_t>(lag - 1)], item_begins(array.level), ragged_ ? 0 : -1, array.level + 1);
}

void StepBuilder::eval_read(const Op& op) {
  ArrayModel& array = *input(op, 0).array;
  const Symbol index = input(op, 1);
  try {
    if (index.is(Kind::counter) && array.of_rows) return bind(op.outputs[0], row_of(array, index.offset));
    if (index.is(Kind::counter) && array.over_time) {
      const std::int64_t lag = array.write_at - index.offset;
      if (lag < 0 || (lag == 0 && array.latest.is(Kind::none)))
        throw UnsupportedError(fmt::format("reads '{}' before it is written", array.name));
      return bind(op.outputs[0], lag == 0 ? array.latest : earlier(array, lag, input(op, 2)));
    }
  } catch (const UnsupportedError& error) {
    refuse(op, error.what());
  }
  if (const auto slot = constant_integer(index)) {
    if (array.of_rows) refuse(op, fmt::format("reads the row of step {} alone", *slot));
    if (array.over_time) return bind(op.outputs[0], Symbol{.kind = Kind::final, .origin = "slot of '" + array.name + "'"});
    const auto found = array.slots.find(*slot);
    if (found != array.slots.end()) return bind(op.outputs[0], found->second);
    if (*slot == -1 && op.inputs.size() > 2) return bind(op.outputs[0], input(op, 2));
    refuse(op, fmt::format("reads slot {} of '{}', which nothing wrote", *slot, array.name));
  }
  if (index.is(Kind::length) || index.is(Kind::final))
    return bind(op.outputs[0], Symbol{.kind = Kind::final, .origin = "slot of '" + array.name + "'"});
  refuse(op, "reads a slot whose number depends on the data");
}

void StepBuilder::eval_write(const Op& op, const Symbol& index, const Symbol& value) {
  ArrayModel& array = *input(op, 0).array;
  if (array.over_time && index.is(Kind::counter)) {
    array.latest = value;
    return;
  }
  expect_row_each_step(op, value);
  const auto slot = constant_integer(index);
  if (!slot) refuse(op, "writes a slot whose number depends on the data");
  array.slots[*slot] = value;
}

/// stack, concat and pack.
void StepBuilder::eval_joined(const Op& op) {
  const ArrayModel& array = *input(op, 0).array;
  const auto axis = op.attributes.get_or<std::int64_t>("axis", 0);
  if (array.of_rows) return bind(op.outputs[0], array.source);
  if (array.over_time) {
    if (!array.slots.empty()) refuse(op, fmt::format("joins '{}', which has slots from before the loop", array.name));
    if (op.type == "tensor_array_stack") {
      const auto rank = type_of(array.latest).rank() + 1;
      const auto at = static_cast<int>(axis < 0 ? axis + rank : axis);
      return bind(op.outputs[0], apply("unsqueeze", {array.latest}, {{"axes", Ints{at}}}, at)[0]);
    }
    Symbol joined = array.latest;
    if (op.type == "tensor_array_concat" && (*type_of(joined).shape)[0] != 1) refuse(op, "joins more than one row a step");
    joined.rows = 0;
    return bind(op.outputs[0], std::move(joined));
  }
  if (op.type != "tensor_array_stack" && op.type != "tensor_array_concat") refuse(op, "packs an array that no loop over the rows wrote");
  std::vector<Symbol> parts;
  int rows = -1;
  const bool stacks = op.type == "tensor_array_stack";
  for (const auto& [slot, value] : array.slots) {
    if (std::cmp_not_equal(slot, parts.size()))
      refuse(op, fmt::format("joins '{}', whose slot {} nothing wrote", array.name, parts.size()));
    if (value.is(Kind::final)) return bind_final(op, value);
    const int rank = type_of(value).rank() + (stacks ? 1 : 0);
    const auto at = static_cast<int>(axis < 0 ? axis + rank : axis);
    const int own = value.rows < 0 ? -1 : value.rows + (stacks && at <= value.rows ? 1 : 0);
    if (own >= 0 && (own == at || (rows >= 0 && own != rows) || ragged_)) refuse(op, "joins values that have rows of their own");
    rows = std::max(rows, own);
    parts.push_back(stacks ? apply("unsqueeze", {value}, {{"axes", Ints{axis}}}, own)[0] : value);
  }
  if (parts.empty() || (array.size && std::cmp_not_equal(*array.size, parts.size())))
    refuse(op, fmt::format("joins '{}', which has unwritten slots", array.name));
  bind(op.outputs[0], apply("concat", parts, {{"axis", axis}}, rows)[0]);
}

}  // namespace millrace::lowering
