// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/recurrence.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/lowering/internal/step_builder.h>
#include <millrace/runtime/lowering/prune.h>
#include <millrace/runtime/program/vectorize.h>

namespace millrace {
namespace {

Recurrence finished(Recurrence made) {
  made.step = prune(made.step);
  made.start = prune(made.start);
  made.batched = vectorize(made.step);
  for (Recurrence::Boundary& boundary : made.boundaries) {
    boundary.program = prune(boundary.program);
    boundary.batched = vectorize(boundary.program);
  }
  return made;
}

/// The axes along which the rows may lie, when no input has LoD: those that some input leaves open.
std::vector<int> open_axes(const Program& program) {
  std::vector<int> axes;
  for (int axis = 0; axis < max_rank; ++axis) {
    for (const Program::Port& port : program.inputs()) {
      const VarType& type = program.var(port.var).type;
      if (!type.shape || axis >= type.rank() || (*type.shape)[axis] != DDim::unknown) continue;
      axes.push_back(axis);
      break;
    }
  }
  return axes;
}

/// The names of open extents, each once, but for those of two axes of one input: rows arrive along one axis.
std::vector<std::string> open_extents(const Program& program) {
  std::vector<std::string> names;
  std::set<std::string> seen{""};
  for (const Program::Port& port : program.inputs())
    for (const std::string& name : port.extents)
      if (seen.insert(name).second) names.push_back(name);
  std::erase_if(names, [&](const std::string& name) {
    return std::any_of(program.inputs().begin(), program.inputs().end(),
                       [&](const auto& port) { return std::count(port.extents.begin(), port.extents.end(), name) > 1; });
  });
  return names;
}

/// Whether an iteration hands a state on. A value that is known at the start and only read says nothing of the axis.
bool carries(const Recurrence& made) {
  return std::any_of(made.states.begin(), made.states.end(), [](const Recurrence::State& state) { return state.changes; });
}

/// Why rows along `axis` are not those that the names of the extents tell: an input that has no such rows there has as many along another axis, and would be
/// given at the start. Empty: the names tell no other.
std::string told_otherwise(const Program& program, int axis) {
  const std::vector<std::string> names = open_extents(program);
  const auto live = [&](const Program::Port& port) {
    const VarType& type = program.var(port.var).type;
    return type.shape && axis < type.rank() && (*type.shape)[axis] == DDim::unknown;
  };
  for (const Program::Port& port : program.inputs()) {
    if (!live(port) || axis >= std::ssize(port.extents)) continue;
    const std::string& rows = port.extents[static_cast<std::size_t>(axis)];
    if (std::find(names.begin(), names.end(), rows) == names.end()) continue;
    for (const Program::Port& other : program.inputs()) {
      const auto found = std::find(other.extents.begin(), other.extents.end(), rows);
      if (live(other) || found == other.extents.end()) continue;
      return fmt::format("'{}' has the rows '{}' along axis {}", other.name, rows, found - other.extents.begin());
    }
  }
  return "";
}

/// The recurrence over the first named extent along which the program carries a state that changes: inputs with that extent are live, the others are
/// given. The names tell the time of x: f32[batch, time, 5] from the batch of h0: f32[1, batch, 8], which the axes alone do not. None: no extent gives one.
/// Where the rows lie along several axes (`told`), a name that is the only one needs no state. `why` gets a line for each extent that is none.
std::optional<Recurrence> over_named_extent(const Program& program, const RecurrenceOptions& options, bool told,
                                            std::vector<std::string>& why) {
  const std::vector<std::string> names = open_extents(program);
  const bool only = told && names.size() == 1;
  for (const std::string& extent : names) {
    try {
      Recurrence made = finished(lowering::StepBuilder(program, options, 0, extent).build());
      made.extent = extent;
      if (only || carries(made)) return made;
      why.push_back(fmt::format("along extent '{}': nothing is carried from row to row", extent));
    } catch (const UnsupportedError& error) {
      why.push_back(fmt::format("along extent '{}': {}", extent, error.what()));
    } catch (const ProgramError& error) {
      why.push_back(fmt::format("along extent '{}': {}", extent, error.what()));
    }
  }
  return std::nullopt;
}

bool has(const std::vector<Program::Port>& ports, const std::string& name) {
  return std::any_of(ports.begin(), ports.end(), [&](const Program::Port& port) { return port.name == name; });
}

/// "along axis 0: …; along axis 1: …".
std::string along(const std::vector<std::pair<int, std::string>>& refused) {
  std::string text;
  for (const auto& [axis, why] : refused) text += fmt::format("{}along axis {}: {}", text.empty() ? "" : "; ", axis, why);
  return text;
}

/// Whether the rows that somebody gave are one tensor, wherever among the two axes a sequence of them has its rows.
bool rows_fit_alike(const Program& program, const RecurrenceOptions& options, int one, int other) {
  return std::all_of(program.inputs().begin(), program.inputs().end(), [&](const Program::Port& port) {
    const auto given = options.rows.find(port.name);
    const int rank = program.var(port.var).type.rank();
    if (given == options.rows.end() || std::max(one, other) >= rank) return true;
    const DDim& row = given->second;
    return row.rank() == rank ? row[one] == 1 && row[other] == 1 : row.inserted(one, 1) == row.inserted(other, 1);
  });
}

}  // namespace

void check_states(const Program& program, const std::vector<std::pair<std::string, std::string>>& states) {
  std::set<std::string> inputs, outputs;
  for (const auto& [input, output] : states) {
    if (!has(program.inputs(), input))
      throw ArgumentError(fmt::format("state {}:{}: expected an input of that name, found no '{}'", input, output, input));
    if (!has(program.outputs(), output))
      throw ArgumentError(fmt::format("state {}:{}: expected an output of that name, found no '{}'", input, output, output));
    if (!inputs.insert(input).second)
      throw ArgumentError(fmt::format("state {}:{}: expected each input once, found '{}' twice", input, output, input));
    if (!outputs.insert(output).second)
      throw ArgumentError(fmt::format("state {}:{}: expected each output once, found '{}' twice", input, output, output));
  }
}

Recurrence make_recurrence(const Program& program, const RecurrenceOptions& options) {
  check_states(program, options.states);
  if (!options.states.empty()) return finished(lowering::StepBuilder(program, options, -1).build());
  for (const Program::Port& port : program.inputs())
    if (program.var(port.var).type.lod_depth > 0) return finished(lowering::StepBuilder(program, options, 0).build());
  const std::vector<int> axes = open_axes(program);
  if (axes.empty())
    throw UnsupportedError("program '" + program.title() +
                           "': expected an input with LoD or with an open axis along which rows arrive, found none: name its states");
  std::vector<std::pair<int, std::string>> refused;  // axis, and why
  std::optional<Recurrence> stateless;
  bool told = false;  // by the names, that the rows lie along several axes
  for (const int axis : axes) {
    if (const std::string why = axes.size() > 1 ? told_otherwise(program, axis) : ""; !why.empty()) {
      told = true;
      refused.emplace_back(axis, why);
      continue;
    }
    try {
      Recurrence made = finished(lowering::StepBuilder(program, options, axis).build());
      if (axes.size() > 1) made.axis = axis;
      if (carries(made) || axes.size() == 1) return made;
      if (!stateless) stateless = std::move(made);
    } catch (const UnsupportedError& error) {
      refused.emplace_back(axis, error.what());
    } catch (const ProgramError& error) {  // an op that does not fit one step along this axis
      refused.emplace_back(axis, error.what());
    }
  }
  // Rows that see nothing of one another are sequences of one row each: that is meant where they see nothing of one another along the other axes either, or
  // where somebody says what a row is along this axis and no other.
  const auto alike = [&](const auto& one) { return rows_fit_alike(program, options, stateless->axis, one.first); };
  const bool unclear = !stateless || std::any_of(refused.begin(), refused.end(), alike);
  std::vector<std::string> named;
  if (unclear)
    if (std::optional<Recurrence> made = over_named_extent(program, options, told, named)) return std::move(*made);
  const std::string advice = "Fix the extents of the batch, or say what a row is";
  // Otherwise the axes say why, and a name says no more.
  if (told && unclear)
    throw UnsupportedError(fmt::format("program '{}': expected one extent along which rows arrive, found none: {}; {}. {}", program.title(),
                                       along(refused), fmt::join(named, "; "), advice));
  if (!stateless && refused.size() == 1) throw UnsupportedError(refused.front().second);
  if (!stateless)
    throw UnsupportedError(fmt::format("program '{}': expected one axis along which rows arrive, found open axes {}: {}. {}",
                                       program.title(), fmt::join(axes, " and "), along(refused), advice));
  if (unclear)
    throw UnsupportedError(
        fmt::format("program '{}': expected one axis along which rows arrive, found open axes {}: along axis {} each row would be a "
                    "sequence of its own, and {}. {}",
                    program.title(), fmt::join(axes, " and "), stateless->axis, along(refused),
                    options.rows.empty() ? advice : "The rows that were given fit both: fix the extents of the batch"));
  return std::move(*stateless);
}

std::string Recurrence::to_string() const {
  std::string text;
  if (axis >= 0) text += fmt::format("rows arrive along axis {} of the inputs, and not along the others that are open\n", axis);
  if (!extent.empty())
    text += fmt::format("rows arrive along the extent '{}' of the inputs, and not along the others that are open\n", extent);
  for (const Input& input : inputs)
    text += fmt::format("live input '{}': rows of {}{}\n", input.name, name_of(input.dtype), input.row.to_string());
  for (const Given& value : given)
    text += fmt::format("given at the start, else {}: '{}': {}{}\n", value.otherwise.elements() > 0 ? "its default" : "zeros", value.name,
                        name_of(value.dtype), value.dims.to_string());
  for (const State& state : states)
    text += fmt::format("state '{}': {}{}, {}{}\n", state.name, name_of(state.dtype), state.dims.to_string(), state.origin,
                        state.changes ? "" : ", read only");
  for (const Output& output : outputs)
    text += fmt::format("output '{}': rows of {}{}\n", output.name, name_of(output.dtype), output.row.to_string());
  for (const Boundary& boundary : boundaries) {
    for (const Input& input : boundary.inputs)
      text += fmt::format("live input '{}': a row of {}{} when a sequence of level {} opens\n", input.name, name_of(input.dtype),
                          input.row.to_string(), boundary.level);
    for (const Output& output : boundary.outputs)
      text += fmt::format("output '{}': a row of {}{} when a sequence of level {} closes\n", output.name, name_of(output.dtype),
                          output.row.to_string(), boundary.level);
    for (const auto& [state, value] : boundary.constants)
      text += fmt::format("state '{}': begins anew when a sequence of level {} opens\n", states[state].name, boundary.level);
    for (const std::size_t state : boundary.changes)
      text += fmt::format("state '{}': set when a sequence of level {} {}\n", states[state].name, boundary.level,
                          boundary.opens ? "opens" : "closes");
  }
  for (const std::string& name : at_end) text += fmt::format("output '{}': known only at the end, not streamed\n", name);
  text += "\n" + step.to_string();
  for (const Boundary& boundary : boundaries)
    if (!boundary.program.outputs().empty()) text += "\n" + boundary.program.to_string();
  return text;
}

}  // namespace millrace
