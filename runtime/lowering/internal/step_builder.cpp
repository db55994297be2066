// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/internal/step_builder.h>

#include <algorithm>

#include <fmt/format.h>

namespace millrace::lowering {
namespace {

/// The extents of one step: what is open counts one.
DDim closed(const VarType& type) {
  DDim dims = *type.shape;
  for (int axis = 0; axis < dims.rank(); ++axis)
    if (dims[axis] == DDim::unknown) dims[axis] = 1;
  return dims;
}

}  // namespace

StepBuilder::StepBuilder(const Program& program, const RecurrenceOptions& options, int axis)
    : program_(program),
      options_(options),
      axis_(axis),
      made_{
          Program(program.shared_registry()), Program(program.shared_registry()), Program(program.shared_registry()), {}, {}, {}, {}, {}} {
  made_.step.set_title(program.title() + ", one step");
  made_.start.set_title(program.title() + ", at the start");
  for (const Program::Port& port : program.inputs()) ragged_ = ragged_ || program.var(port.var).type.lod_depth > 0;
  find_used();
}

Recurrence StepBuilder::build() {
  bind_inputs();
  eval_block(0);
  add_outputs();
  for (std::size_t i = 0; i < state_vars_.size(); ++i) {
    made_.start.add_output(made_.states[i].name, start_var(initial_[i]));
    made_.states[i].changes = !next_[i].is(Kind::none);
    if (made_.states[i].changes) made_.step.add_output("next " + made_.states[i].name, step_var(next_[i]));
  }
  return std::move(made_);
}

// ---- Inputs ----

bool StepBuilder::is_live(const Program::Port& port) const {
  const VarType& type = program_.var(port.var).type;
  if (options_.constants.contains(port.name)) return false;
  for (const auto& [input, output] : options_.states)
    if (input == port.name) return false;
  if (axis_ < 0) return true;
  if (ragged_) return type.lod_depth > 0;
  return type.shape && axis_ < type.rank() && (*type.shape)[axis_] == DDim::unknown;
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
  if (type.lod_depth > 1)
    throw UnsupportedError(fmt::format("input '{}': expected sequences of rows, found {} levels of LoD", port.name, type.lod_depth));
  const int axis = ragged_ ? 0 : axis_;
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
  made_.inputs.push_back({port.name, type.dtype, row, dims});
  const VarId var = made_.step.add_input(port.name, VarType(type.dtype, dims));
  bind(port.var, Symbol{.kind = Kind::step, .var = var, .rows = axis, .origin = "input '" + port.name + "'"});
}

void StepBuilder::bind_given(const Program::Port& port) {
  const VarType& type = program_.var(port.var).type;
  const DDim dims = closed(type);
  made_.given.push_back({port.name, type.dtype, dims});
  const VarId var = made_.start.add_input(port.name, VarType(type.dtype, dims));
  bind(port.var, Symbol{.kind = Kind::session, .var = var, .origin = "input '" + port.name + "'"});
}

/// `--state h:hn`: the input becomes a state whose next value is the output.
void StepBuilder::bind_state_inputs() {
  for (const auto& [input, output] : options_.states) {
    const auto in =
        std::find_if(program_.inputs().begin(), program_.inputs().end(), [&name = input](const auto& port) { return port.name == name; });
    const auto out = std::find_if(program_.outputs().begin(), program_.outputs().end(),
                                  [&name = output](const auto& port) { return port.name == name; });
    if (in == program_.inputs().end())
      throw ArgumentError(fmt::format("state {}:{}: expected an input of that name, found no '{}'", input, output, input));
    if (out == program_.outputs().end())
      throw ArgumentError(fmt::format("state {}:{}: expected an output of that name, found no '{}'", input, output, output));
    const std::size_t state = add_state(input, fmt::format("input '{}', next from output '{}'", input, output), at(in->var), true);
    bind(in->var, state_symbol(state, -1));
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
    if (!fits(found, type_of(state_symbol(index, -1))))
      throw ArgumentError(fmt::format("state {}:{}: expected {}, found {}", state->first, state->second,
                                      type_of(state_symbol(index, -1)).to_string(), found.to_string()));
    next_[index] = std::move(next);
  }
  if (made_.outputs.empty())
    throw UnsupportedError(
        fmt::format("program '{}': expected an output that is known step by step, found none{}", program_.title(),
                    at_end_because_.empty() ? "" : ": " + at_end_because_ + " is known only at the end of the sequence"));
}

void StepBuilder::add_output(const Program::Port& port, const Symbol& symbol) {
  if (symbol.is(Kind::final)) {
    if (at_end_because_.empty()) at_end_because_ = symbol.origin;
    made_.at_end.push_back(port.name);
    return;
  }
  if (!symbol.is(Kind::step) || (axis_ >= 0 && symbol.rows < 0))
    throw UnsupportedError(fmt::format("output '{}': has no row for each row of the input", port.name));
  const DDim dims = *type_of(symbol).shape;
  DDim row = dims;
  if (symbol.rows >= 0)
    row = dims.erased(symbol.rows);
  else if (dims.rank() > 0 && dims[0] == 1)
    row = dims.erased(0);
  made_.outputs.push_back({port.name, type_of(symbol).dtype, row, dims});
  made_.step.add_output(port.name, symbol.var);
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

VarId StepBuilder::materialize(Program& into, std::map<std::string, VarId>& known, const Symbol& constant) {
  const std::string key = fmt::format("{} {} {}", constant.value.raw(), constant.value.to_string(), constant.value.strides().to_string());
  if (const auto found = known.find(key); found != known.end()) return found->second;
  alive_.push_back(constant.value);
  const std::string name = constant.origin.empty() ? "constant" : constant.origin;
  constexpr std::int64_t literal_limit = 16;
  if (constant.value.elements() > literal_limit) return known[key] = into.add_parameter(name, constant.value);
  const Tensor own = constant.value.copy_to(CpuPlace{}).read_only();
  return known[key] = into.append(0, Op{"constant", {}, {}, {{"value", own}}, {}}, {name})[0];
}

VarId StepBuilder::step_var(const Symbol& symbol) {
  if (symbol.is(Kind::constant)) return materialize(made_.step, step_constants_, symbol);
  if (symbol.is(Kind::step)) return symbol.var;
  if (symbol.is(Kind::none)) return no_var;
  // Known at the start: carried along unchanged.
  const auto [kept, fresh] = kept_.emplace(symbol.var, 0);
  if (fresh) kept->second = add_state(made_.start.var(symbol.var).name, "known at the start", symbol, false);
  return state_vars_[kept->second];
}

VarId StepBuilder::start_var(const Symbol& symbol) {
  return symbol.is(Kind::constant) ? materialize(made_.start, start_constants_, symbol) : symbol.is(Kind::session) ? symbol.var : no_var;
}

VarType StepBuilder::type_of(const Symbol& symbol) const {
  if (symbol.is(Kind::constant)) return VarType(symbol.value.dtype(), symbol.value.dims());
  return symbol.is(Kind::session) ? made_.start.var(symbol.var).type : made_.step.var(symbol.var).type;
}

std::size_t StepBuilder::add_state(const std::string& name, const std::string& origin, const Symbol& initial, bool changes) {
  const VarType type = type_of(initial);
  if (!type.is_static()) throw UnsupportedError(fmt::format("state '{}': expected known extents, found {}", name, type.to_string()));
  std::string unique = name;
  const auto taken = [&] {
    return std::any_of(made_.step.inputs().begin(), made_.step.inputs().end(), [&](const auto& port) { return port.name == unique; });
  };
  for (int number = 2; taken(); ++number) unique = fmt::format("{} {}", name, number);
  made_.states.push_back({unique, type.dtype, *type.shape, origin, changes});
  state_vars_.push_back(made_.step.add_input(unique, VarType(type.dtype, *type.shape)));
  initial_.push_back(initial);
  next_.emplace_back();
  return made_.states.size() - 1;
}

Symbol StepBuilder::state_symbol(std::size_t state, int rows) const {
  return Symbol{.kind = Kind::step, .var = state_vars_[state], .rows = rows, .origin = made_.states[state].name};
}

/// A step number that takes part in arithmetic: a state that counts, plus the offset.
Symbol StepBuilder::counter_value(const Symbol& counter) {
  if (!clock_) {
    const Symbol zero{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(0)};
    clock_ = add_state("step", "the number of the step", zero, true);
    const Symbol one{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(1)};
    next_[*clock_] = apply("add", {state_symbol(*clock_, -1), one}, {}, -1)[0];
  }
  if (counter.offset == 0) return state_symbol(*clock_, -1);
  const Symbol offset{.kind = Kind::constant, .value = Tensor::scalar<std::int64_t>(counter.offset)};
  return apply("add", {state_symbol(*clock_, -1), offset}, {}, -1)[0];
}

void StepBuilder::refuse(const Op& op, const std::string& why) const {
  std::string where = "op " + op.type;
  if (!op.label.empty())
    where += " '" + op.label + "'";
  else if (!op.outputs.empty())
    where += " ('" + program_.var(op.outputs[0]).name + "')";
  for (const std::string& loop : path_) where += " in " + loop;
  throw UnsupportedError(where + ": " + why);
}

}  // namespace millrace::lowering
