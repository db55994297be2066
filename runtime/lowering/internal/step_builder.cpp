// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/internal/step_builder.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/program/internal/op_name.h>

namespace millrace::lowering {
namespace {

/// The extents of one step: an open one counts as one.
DDim closed(const VarType& type) {
  DDim dims = *type.shape;
  for (int axis = 0; axis < dims.rank(); ++axis)
    if (dims[axis] == DDim::unknown) dims[axis] = 1;
  return dims;
}

}  // namespace

StepBuilder::StepBuilder(const Program& program, const RecurrenceOptions& options, int axis, std::string extent)
    : program_(program),
      options_(options),
      axis_(axis),
      extent_(std::move(extent)),
      made_{.step = Program(program.shared_registry()),
            .batched = Program(program.shared_registry()),
            .start = Program(program.shared_registry())} {
  constexpr int most_levels = 8;
  for (const Program::Port& port : program.inputs()) {
    const int levels = program.var(port.var).type.lod_depth;
    ragged_ = ragged_ || levels > 0;
    if (levels > (axis < 0 ? 1 : most_levels))
      throw UnsupportedError(fmt::format("input '{}': expected {} levels of LoD at most, found {}", port.name,
                                         axis < 0 ? "with states that are named, 1 level" : std::to_string(most_levels), levels));
    if (!options.constants.contains(port.name)) depth_ = std::max(depth_, levels);
  }
  find_used();
  made_.levels = depth_;
  programs_.assign(static_cast<std::size_t>(2 * depth_), made_.step);
  programs_[0].set_title(program.title() + ", at the start");
  programs_[static_cast<std::size_t>(depth_)].set_title(program.title() + ", one step");
  for (int phase = 1; phase < 2 * depth_; ++phase) {
    if (phase == depth_) continue;
    const bool opens = phase < depth_;
    const int level = opens ? phase : 2 * depth_ - phase;
    Program& made = programs_[static_cast<std::size_t>(phase)];
    made.set_title(fmt::format("{}, when a sequence of level {} {}", program.title(), level, opens ? "opens" : "closes"));
    made_.boundaries.push_back(
        {.level = level, .opens = opens, .program = Program(program.shared_registry()), .batched = Program(program.shared_registry())});
  }
}

Recurrence StepBuilder::build() {
  bind_inputs();
  eval_block(0);
  add_outputs();
  // Backwards: a value that a phase takes from an earlier one becomes a state that the earlier one sets.
  for (int phase = 2 * depth_ - 1; phase > 0; --phase) add_next(phase);
  for (std::size_t i = 0; i < state_vars_.size(); ++i) programs_[0].add_output(made_.states[i].name, var_in(0, initial_[i]));
  made_.start = std::move(programs_[0]);
  made_.step = std::move(programs_[static_cast<std::size_t>(depth_)]);
  for (int phase = 1; phase < 2 * depth_; ++phase)
    if (phase != depth_) boundary(phase).program = std::move(programs_[static_cast<std::size_t>(phase)]);
  return std::move(made_);
}

void StepBuilder::add_next(int phase) {
  for (std::size_t i = 0; i < state_vars_.size(); ++i) {
    const auto found = next_[i].find(phase);
    made_.states[i].changes = made_.states[i].changes || (phase == depth_ && found != next_[i].end());
    if (found == next_[i].end()) continue;
    const Symbol next = found->second;
    if (phase != depth_ && next.is(Kind::constant)) {
      boundary(phase).constants.emplace_back(i, next.value);
      continue;
    }
    if (phase != depth_) boundary(phase).changes.push_back(i);
    const VarId var = var_in(phase, next);
    programs_[static_cast<std::size_t>(phase)].add_output("next " + made_.states[i].name, var);
  }
}

// ---- Inputs ----

/// The open axis along which rows of this input would lie; -1: it has none.
int StepBuilder::axis_of(const Program::Port& port) const {
  const VarType& type = program_.var(port.var).type;
  if (!type.shape) return -1;
  const auto named = std::find(port.extents.begin(), port.extents.end(), extent_);
  const auto axis = extent_.empty() ? std::ptrdiff_t{axis_} : named == port.extents.end() ? -1 : named - port.extents.begin();
  return axis >= 0 && axis < type.rank() && (*type.shape)[static_cast<int>(axis)] == DDim::unknown ? static_cast<int>(axis) : -1;
}

bool StepBuilder::is_live(const Program::Port& port) const {
  const VarType& type = program_.var(port.var).type;
  if (options_.constants.contains(port.name)) return false;
  for (const auto& [input, output] : options_.states)
    if (input == port.name) return false;
  if (axis_ < 0) return true;
  if (ragged_) return type.lod_depth > 0;
  return axis_of(port) >= 0;
}

void StepBuilder::bind_inputs() {
  for (const Program::Port& port : program_.inputs()) {
    const VarType& type = program_.var(port.var).type;
    if (const auto constant = options_.constants.find(port.name); constant != options_.constants.end()) {
      const VarType found(constant->second.dtype(), constant->second.dims());
      if (!fits(found, type))
        throw ArgumentError(fmt::format("input '{}': expected {}, found {}", port.name, type.to_string(), found.to_string()));
      bind(port.var, Symbol{.kind = Kind::constant, .value = constant->second, .origin = port.name});
      continue;
    }
    if (!type.is_tensor() || !type.shape)
      throw UnsupportedError(fmt::format("input '{}': expected a tensor of known rank, found {}", port.name, type.to_string()));
    if (is_live(port)) bind_live(port);
  }
  for (const Program::Port& port : program_.inputs())
    if (!options_.constants.contains(port.name) && !is_live(port)) bind_given(port);
  if (made_.inputs.empty())
    throw UnsupportedError("program '" + program_.title() + "': expected an input with rows that can arrive one by one, found none");
  bind_state_inputs();
}

void StepBuilder::bind_live(const Program::Port& port) {
  const VarType& type = program_.var(port.var).type;
  const int depth = std::max(type.lod_depth, 1);
  const int axis = ragged_ ? 0 : axis_ < 0 ? axis_ : axis_of(port);
  DDim dims = closed(type);
  if (const auto given = options_.rows.find(port.name); given != options_.rows.end()) {
    const std::string message = fmt::format("input '{}': rows of {} do not fit {}", port.name, given->second.to_string(), type.to_string());
    const int own = std::max(axis, 0);
    DDim wanted = given->second;
    if (wanted.rank() + 1 == dims.rank()) wanted = wanted.inserted(own, 1);
    if (wanted.rank() != dims.rank()) throw ArgumentError(message);
    for (int i = 0; i < dims.rank(); ++i)
      if ((*type.shape)[i] != DDim::unknown && (*type.shape)[i] != wanted[i]) throw ArgumentError(message);
    dims = wanted;
  }
  const bool has_row_axis = axis >= 0 || (dims.rank() > 0 && dims[0] == 1);
  const DDim row = has_row_axis ? dims.erased(std::max(axis, 0)) : dims;
  (depth == depth_ ? made_.inputs : boundary(depth).inputs).push_back({port.name, type.dtype, row, dims});
  const VarId var = programs_[static_cast<std::size_t>(depth)].add_input(port.name, VarType(type.dtype, dims));
  bind(port.var,
       Symbol{.kind = Kind::step, .var = var, .phase = depth, .clock = depth, .rows = axis, .origin = "input '" + port.name + "'"});
}

void StepBuilder::bind_given(const Program::Port& port) {
  const VarType& type = program_.var(port.var).type;
  DDim dims = closed(type);
  if (const auto said = options_.rows.find(port.name); said != options_.rows.end()) {
    if (!fits(VarType(type.dtype, said->second), type))
      throw ArgumentError(fmt::format("input '{}': rows of {} do not fit {}", port.name, said->second.to_string(), type.to_string()));
    dims = said->second;
  }
  Tensor otherwise;
  if (const auto found = options_.defaults.find(port.name); found != options_.defaults.end()) {
    otherwise = found->second;
    if (otherwise.dtype() != type.dtype || otherwise.dims() != dims)
      throw ArgumentError(fmt::format("input '{}': expected a default of {}{}, found {}{}", port.name, name_of(type.dtype),
                                      dims.to_string(), name_of(otherwise.dtype()), otherwise.dims().to_string()));
  }
  made_.given.push_back({port.name, type.dtype, dims, std::move(otherwise)});
  const VarId var = programs_[0].add_input(port.name, VarType(type.dtype, dims));
  bind(port.var, Symbol{.kind = Kind::session, .var = var, .origin = "input '" + port.name + "'"});
}

/// `--state h:hn`: the input becomes a state whose next value is the output.
void StepBuilder::bind_state_inputs() {
  for (const auto& [input, output] : options_.states) {
    const auto in =
        std::find_if(program_.inputs().begin(), program_.inputs().end(), [&name = input](const auto& port) { return port.name == name; });
    const std::size_t state = add_state(input, fmt::format("input '{}', next from output '{}'", input, output), at(in->var), 0);
    bind(in->var, state_at(state, depth_, -1, depth_));
  }
}

// ---- Outputs ----

void StepBuilder::add_outputs() {
  for (const Program::Port& port : program_.outputs()) {
    const auto state =
        std::find_if(options_.states.begin(), options_.states.end(), [&](const auto& pair) { return pair.second == port.name; });
    if (state == options_.states.end()) {
      add_output(port, at(port.var));
      continue;
    }
    const auto index = static_cast<std::size_t>(state - options_.states.begin());
    Symbol next = at(port.var);
    const VarType found = type_of(next);
    const VarType wanted = type_of(state_at(index, depth_, -1, depth_));
    if (!fits(found, wanted))
      throw ArgumentError(
          fmt::format("state {}:{}: expected {}, found {}", state->first, state->second, wanted.to_string(), found.to_string()));
    next_[index][depth_] = std::move(next);
  }
  if (made_.outputs.empty()) add_taken_outputs();
  const bool given = std::any_of(made_.boundaries.begin(), made_.boundaries.end(), [](const auto& at) { return !at.outputs.empty(); });
  if (made_.outputs.empty() && !given) {
    std::string why;
    if (!at_end_because_.empty())
      why = ": " + at_end_because_ + " is known only at the end of the sequence";
    else if (!options_.states.empty())
      why = ": states take all outputs, and none of them depends on what a step takes";
    throw UnsupportedError(fmt::format("program '{}': expected an output that is known step by step, found none{}", program_.title(), why));
  }
}

/// A step gives something: where states take all outputs, or all that are known step by step, these.
void StepBuilder::add_taken_outputs() {
  for (const Program::Port& port : program_.outputs()) {
    const bool taken =
        std::any_of(options_.states.begin(), options_.states.end(), [&](const auto& pair) { return pair.second == port.name; });
    const Symbol symbol = at(port.var);
    if (taken && symbol.is(Kind::step) && symbol.has_row_each_step()) add_output(port, symbol);
  }
}

void StepBuilder::add_output(const Program::Port& port, const Symbol& symbol) {
  if (symbol.is(Kind::final) || symbol.is(Kind::length) || symbol.is(Kind::extents)) {
    if (at_end_because_.empty()) at_end_because_ = symbol.origin;
    made_.at_end.push_back(port.name);
    return;
  }
  if (!symbol.is(Kind::step) || (axis_ >= 0 && symbol.rows < 0))
    throw UnsupportedError(fmt::format("output '{}': has no row for each row of the input, or is the same in every step", port.name));
  if (!symbol.has_row_each_step()) throw UnsupportedError(symbol.deviates);
  const DDim dims = *type_of(symbol).shape;
  DDim row = dims;
  if (symbol.rows >= 0)
    row = dims.erased(symbol.rows);
  else if (dims.rank() > 0 && dims[0] == 1)
    row = dims.erased(0);
  // A value with a row for each sequence of a level is given when that sequence closes.
  const int phase = sequence_closes(symbol.clock);
  (phase == depth_ ? made_.outputs : boundary(phase).outputs).push_back({port.name, type_of(symbol).dtype, row, dims});
  programs_[static_cast<std::size_t>(phase)].add_output(port.name, var_in(phase, symbol));
}

// ---- Symbols ----

const Symbol& StepBuilder::at(VarId var) {
  static const Symbol absent;
  if (var == no_var) return absent;
  const auto found = symbols_.find(var);
  if (found != symbols_.end()) return found->second;
  if (const Tensor* constant = program_.constant(var))
    return symbols_[var] = Symbol{.kind = Kind::constant, .value = *constant, .origin = program_.var(var).name};
  throw ProgramError("'" + program_.var(var).name + "': read before it is written");
}

VarId StepBuilder::materialize(int phase, const Symbol& constant) {
  Program& into = programs_[static_cast<std::size_t>(phase)];
  const std::pair key(phase,
                      fmt::format("{} {} {}", constant.value.raw(), constant.value.to_string(), constant.value.strides().to_string()));
  if (const auto found = constants_.find(key); found != constants_.end()) return found->second;
  alive_.push_back(constant.value);
  const std::string name = constant.origin.empty() ? "constant" : constant.origin;
  constexpr std::int64_t literal_limit = 16;
  if (constant.value.elements() > literal_limit) return constants_[key] = into.add_parameter(name, constant.value);
  const Tensor own = constant.value.copy_to(CpuPlace{}).read_only();
  return constants_[key] = into.append(0, Op{"constant", {}, {}, {{"value", own}}, {}}, {name})[0];
}

VarId StepBuilder::var_in(int phase, const Symbol& symbol) {
  if (symbol.is(Kind::constant)) return materialize(phase, symbol);
  if (symbol.is(Kind::none)) return no_var;
  if (symbol.phase == phase) return symbol.var;
  if (symbol.phase > phase) throw UnsupportedError(symbol.origin + ": is known only when the sequence has closed");
  const auto [kept, fresh] = kept_.emplace(std::pair(symbol.phase, symbol.var), 0);
  if (fresh && symbol.phase == 0) {
    kept->second = add_state(programs_[0].var(symbol.var).name, "known at the start", symbol, 0);
  } else if (fresh) {
    kept->second = add_state(program_of(symbol).var(symbol.var).name, "carried on from " + program_of(symbol).title(), symbol, 0);
    next_[kept->second][symbol.phase] = symbol;
  }
  return state_vars_[kept->second][static_cast<std::size_t>(phase)];
}

VarType StepBuilder::type_of(const Symbol& symbol) const {
  if (symbol.is(Kind::constant)) return VarType(symbol.value.dtype(), symbol.value.dims());
  return program_of(symbol).var(symbol.var).type;
}

std::size_t StepBuilder::add_state(const std::string& name, const std::string& origin, const Symbol& initial, int level) {
  const VarType type = type_of(initial);
  if (!type.is_static()) throw UnsupportedError(fmt::format("state '{}': expected known extents, found {}", name, type.to_string()));
  const auto taken = [&](const std::string& wanted) {
    return std::any_of(programs_.begin() + 1, programs_.end(), [&](const Program& program) {
      return std::any_of(program.inputs().begin(), program.inputs().end(), [&](const auto& port) { return port.name == wanted; });
    });
  };
  std::string unique = name;
  for (int number = 2; taken(unique); ++number) unique = fmt::format("{} {}", name, number);
  made_.states.push_back({unique, type.dtype, *type.shape, origin, false});
  std::vector<VarId> vars{no_var};
  for (int phase = 1; phase < 2 * depth_; ++phase)
    vars.push_back(programs_[static_cast<std::size_t>(phase)].add_input(unique, VarType(type.dtype, *type.shape)));
  state_vars_.push_back(std::move(vars));
  next_.emplace_back();
  if (level > 0) next_.back()[level] = initial;
  if (initial.is(Kind::step)) {
    Tensor zeros(type.dtype, *type.shape);
    std::fill_n(static_cast<std::byte*>(zeros.raw_mutable()), zeros.bytes(), std::byte{0});
    zeros.storage()->mark_written();
    initial_.push_back(Symbol{.kind = Kind::constant, .value = std::move(zeros), .origin = unique});
  } else {
    initial_.push_back(initial);
  }
  return made_.states.size() - 1;
}

Symbol StepBuilder::state_at(std::size_t state, int phase, int rows, int clock) const {
  return Symbol{.kind = Kind::step,
                .var = state_vars_[state][static_cast<std::size_t>(phase)],
                .phase = phase,
                .clock = clock,
                .rows = rows,
                .origin = made_.states[state].name};
}

/// The number of an item that takes part in arithmetic: a state that counts, plus the offset.
Symbol StepBuilder::counter_value(const Symbol& counter) {
  const int clock = counter.level + 1, begins = item_begins(counter.level), ends = item_ends(counter.level);
  const auto [count, fresh] = counts_.emplace(counter.level, 0);
  if (fresh) {
    const Symbol zero{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(0)};
    const std::size_t made = add_state("step", "the number of the step", zero, counter.level);
    const Symbol one{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(1)};
    next_[made][ends] = apply("add", {state_at(made, ends, -1, clock), one}, {}, -1)[0];
    count->second = made;
  }
  Symbol value = state_at(count->second, begins, -1, clock);
  if (counter.offset == 0) return value;
  const Symbol offset{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(counter.offset)};
  return apply("add", {value, offset}, {}, -1)[0];
}

std::string StepBuilder::named(const Op& op) const {
  std::string where = internal::op_name(op);
  if (op.label.empty() && !op.outputs.empty()) where += " ('" + program_.var(op.outputs[0]).name + "')";
  for (const std::string& loop : path_) where += " in " + loop;
  return where;
}

void StepBuilder::refuse(const Op& op, const std::string& why) const { throw UnsupportedError(named(op) + ": " + why); }

}  // namespace millrace::lowering
