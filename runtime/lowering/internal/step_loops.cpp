// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <millrace/runtime/lowering/internal/step_builder.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::lowering {

void StepBuilder::eval_while(const Op& op) {
  path_.push_back(op.outputs.empty() ? "a loop" : "loop '" + program_.var(op.outputs[0]).name + "'");
  if (level_over_time(op))
    eval_over_time(op);
  else
    unroll(op);
  path_.pop_back();
}

/// A carried number that starts at a known integer and grows by one each iteration is the number of the step.
std::optional<Symbol> StepBuilder::counter_param(const Block& body, std::size_t index, const Symbol& initial) const {
  if (!initial.is(Kind::constant) || is_floating(initial.value.dtype()) || initial.value.elements() != 1) return std::nullopt;
  const VarId param = body.params[index];
  for (const Op& op : body.ops) {
    const bool adds = program_.registry().at(op.type).traits.arithmetic == OpTraits::Arithmetic::add;
    if (!adds || op.outputs[0] != body.results[index]) continue;
    const VarId other = op.inputs[0] == param ? op.inputs[1] : op.inputs[1] == param ? op.inputs[0] : no_var;
    const Tensor* one = other == no_var ? nullptr : program_.constant(other);
    if (one != nullptr && one->elements() == 1 && !is_floating(one->dtype()) && one->item_int() == 1)
      return Symbol{.kind = Kind::counter, .offset = initial.value.item_int(), .level = loop_level_, .origin = program_.var(param).name};
  }
  return std::nullopt;
}

/// Whether the loop iterations once for each item of a sequence, and of which level: its condition compares a counter with their number.
std::optional<int> StepBuilder::level_over_time(const Op& op) {
  if (axis_ < 0) return std::nullopt;
  const Block& body = program_.block(op.attributes.get<BlockId>("sub_block").index);
  const std::int64_t condition = op.attributes.get_or<std::int64_t>("condition", -1);
  if (condition >= 0) {
    const Symbol test = input(op, static_cast<std::size_t>(condition));
    return test.is(Kind::running) ? std::optional(test.level) : std::nullopt;
  }
  std::vector<VarId> tests;
  for (const Op& inner : body.ops)
    if (inner.type == "break_if") tests.push_back(inner.inputs[0]);
  // The comparison itself, or a negation of it.
  const auto compares_length = [&](VarId var) -> std::optional<int> {
    for (int step = 0; step < 4 && var != no_var; ++step) {
      const auto made = std::find_if(body.ops.begin(), body.ops.end(),
                                     [&](const Op& inner) { return !inner.outputs.empty() && inner.outputs[0] == var; });
      if (made == body.ops.end()) return std::nullopt;
      for (const VarId in : made->inputs)
        if (in != no_var && program_.var(in).block != body.idx && at(in).is(Kind::length) && at(in).offset == 0) return at(in).level;
      var = made->inputs.empty() ? no_var : made->inputs[0];
    }
    return std::nullopt;
  };
  for (const VarId test : tests)
    if (const std::optional<int> level = compares_length(test)) return level;
  return std::nullopt;
}

/// At which step + n the arrays of the body are written: reads that come earlier in the body need to know.
void StepBuilder::find_writes(const Block& body) {
  const std::map<VarId, Symbol> before = symbols_;
  for (const Op& op : body.ops) {
    const OpTraits::Arithmetic arithmetic = program_.registry().at(op.type).traits.arithmetic;
    const bool moves = arithmetic == OpTraits::Arithmetic::add || arithmetic == OpTraits::Arithmetic::subtract;
    const bool counts = moves && std::all_of(op.inputs.begin(), op.inputs.end(),
                                             [&](VarId in) { return symbols_.contains(in) || program_.constant(in) != nullptr; });
    if (counts) eval_control(op);
    if (op.type != "tensor_array_write" && op.type != "tensor_array_append") continue;
    if (!at(op.inputs[0]).is(Kind::array)) refuse(op, "writes an array that is known only at the end of the sequence");
    ArrayModel& array = *at(op.inputs[0]).array;
    if (op.type == "tensor_array_append") {
      array.write_at = array.slots.empty() ? 0 : array.slots.rbegin()->first + 1;
    } else {
      const auto index = symbols_.find(op.inputs[1]);
      if (index == symbols_.end() || !index->second.is(Kind::counter)) refuse(op, "writes a slot whose number is not the step's");
      array.write_at = index->second.offset;
    }
    if (array.over_time) refuse(op, "writes an array that another op writes at each step");
    array.over_time = true;
    array.level = loop_level_;
  }
  symbols_ = before;
}

/// A var that the loop carries: the number of the item, or a state, whose number is given.
std::optional<std::size_t> StepBuilder::carry(const Op& op, const Block& body, std::size_t index) {
  const Symbol initial = input(op, index);
  if (auto counter = counter_param(body, index, initial)) {
    bind(body.params[index], std::move(*counter));
    return std::nullopt;
  }
  const bool early = initial.is(Kind::constant) || initial.is(Kind::session) || (initial.is(Kind::step) && initial.phase <= loop_level_);
  if (!early) refuse(op, fmt::format("the first value of '{}' depends on the rows", program_.var(op.inputs[index]).name));
  const std::string name = program_.var(body.params[index]).name;
  const std::size_t state = add_state(name, fmt::format("carried by {}", path_.back()), initial, loop_level_);
  const bool batch = ragged_ && type_of(initial).rank() > 0 && (*type_of(initial).shape)[0] == 1;
  bind(body.params[index], state_at(state, item_begins(loop_level_), batch ? 0 : -1, loop_level_ + 1));
  return state;
}

/// A value from outside the loop that it reads and that is known only at the end: a second pass over the rows.
std::optional<Symbol> StepBuilder::late_value(const Op& op, const Block& body) {
  const auto late = [&](VarId var) -> std::optional<Symbol> {
    const auto found = symbols_.find(var);
    if (var == no_var || found == symbols_.end()) return std::nullopt;
    if (found->second.is(Kind::final)) return found->second;
    const bool array = found->second.is(Kind::array) && found->second.array->decided_late.is(Kind::final);
    return array ? std::optional(found->second.array->decided_late) : std::nullopt;
  };
  for (const VarId input : op.inputs)
    if (auto value = late(input)) return value;
  for (const Block& block : program_.blocks()) {
    if (!is_inside(block.idx, {body.idx})) continue;
    for (const Op& inner : block.ops)
      for (const VarId input : inner.inputs) {
        if (input == no_var || unused(inner) || is_inside(program_.var(input).block, {body.idx})) continue;
        if (auto value = late(input)) return value;
      }
  }
  return std::nullopt;
}

void StepBuilder::eval_over_time(const Op& op) {
  const Block& body = program_.block(op.attributes.get<BlockId>("sub_block").index);
  if (const auto late = late_value(op, body)) return bind_decided_late(op, {body.idx}, *late);
  const std::int64_t condition = op.attributes.get_or<std::int64_t>("condition", -1);
  const int level = *level_over_time(op);
  if (level <= loop_level_) refuse(op, "goes over the same rows as the loop around it");
  const int around = std::exchange(loop_level_, level);
  std::vector<std::optional<std::size_t>> states(body.params.size());
  for (std::size_t i = 0; i < body.params.size(); ++i) {
    if (std::cmp_equal(i, condition))
      bind(body.params[i], input(op, i));
    else
      states[i] = carry(op, body, i);
  }
  find_writes(body);
  eval_block(body.idx);
  const int ends = item_ends(level);
  for (std::size_t i = 0; i < body.params.size(); ++i) {
    Symbol left{.kind = Kind::final, .origin = "what " + path_.back() + " leaves"};
    if (states[i] && level > 0) left = state_at(*states[i], sequence_closes(level), at(body.params[i]).rows, level);
    if (states[i]) next_[*states[i]][ends] = at(body.results[i]);
    bind(op.outputs[i], std::move(left));
  }
  for (const Op& inner : body.ops) {
    if (inner.type != "tensor_array_write" && inner.type != "tensor_array_append") continue;
    const ArrayModel& array = *at(inner.inputs[0]).array;
    for (std::size_t lag = 0; lag < array.lags.size(); ++lag)
      next_[array.lags[lag]][ends] = lag == 0 ? array.latest : state_at(array.lags[lag - 1], ends, -1, level + 1);
  }
  loop_level_ = around;
}

/// A loop whose condition is known: its iterations, one after the other.
void StepBuilder::unroll(const Op& op) {
  constexpr int most_iterations = 1024;
  const Block& body = program_.block(op.attributes.get<BlockId>("sub_block").index);
  const std::int64_t condition = op.attributes.get_or<std::int64_t>("condition", -1);
  const std::int64_t max_trips = op.attributes.get_or<std::int64_t>("max_trips", -1);
  std::vector<Symbol> carried;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) carried.push_back(input(op, i));
  const auto decided = [&](const Symbol& test) {
    if (!test.is(Kind::constant)) refuse(op, "ends by what is known only while the program runs");
    return test.value.item() != 0.0;
  };
  const auto decided_late = [&](const Symbol& test) {
    if (!test.is(Kind::final)) return false;
    for (const Symbol& symbol : carried)
      if (symbol.is(Kind::array)) symbol.array->decided_late = test;
    bind_decided_late(op, {body.idx}, test);
    return true;
  };
  bool broke = false;
  for (int iteration = 0; !broke && (max_trips < 0 || iteration < max_trips); ++iteration) {
    if (iteration == most_iterations) refuse(op, fmt::format("iterations more than {} times in one step", most_iterations));
    if (condition >= 0 && decided_late(carried[static_cast<std::size_t>(condition)])) return;
    if (condition >= 0 && !decided(carried[static_cast<std::size_t>(condition)])) break;
    for (std::size_t i = 0; i < carried.size(); ++i) bind(body.params[i], carried[i]);
    for (const Op& inner : body.ops) {
      if (inner.type != "break_if") {
        eval(inner, body.idx);
        continue;
      }
      if (decided_late(at(inner.inputs[0]))) return;
      broke = decided(at(inner.inputs[0]));
      if (!broke) continue;
      for (std::size_t i = 0; i < carried.size(); ++i) carried[i] = at(inner.inputs[i + 1]);
      break;
    }
    if (!broke)
      for (std::size_t i = 0; i < carried.size(); ++i) carried[i] = at(body.results[i]);
  }
  for (std::size_t i = 0; i < carried.size(); ++i) bind(op.outputs[i], carried[i]);
}

}  // namespace millrace::lowering
