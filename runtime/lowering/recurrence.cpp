// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/recurrence.h>

#include <fmt/format.h>

#include <millrace/runtime/lowering/internal/step_builder.h>
#include <millrace/runtime/lowering/prune.h>
#include <millrace/runtime/lowering/vectorize.h>

namespace millrace {
namespace {

Recurrence finished(Recurrence made) {
  made.step = prune(made.step);
  made.start = prune(made.start);
  made.batched = vectorize(made.step);
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

}  // namespace

Recurrence make_recurrence(const Program& program, const RecurrenceOptions& options) {
  if (!options.states.empty()) return finished(lowering::StepBuilder(program, options, -1).build());
  for (const Program::Port& port : program.inputs())
    if (program.var(port.var).type.lod_depth > 0) return finished(lowering::StepBuilder(program, options, 0).build());
  const std::vector<int> axes = open_axes(program);
  if (axes.empty())
    throw UnsupportedError("program '" + program.title() +
                           "': expected an input with LoD or with an open axis along which rows arrive, found none: name its states");
  std::string first;
  for (const int axis : axes) {
    try {
      return finished(lowering::StepBuilder(program, options, axis).build());
    } catch (const UnsupportedError& error) {
      if (first.empty()) first = error.what();
    }
  }
  throw UnsupportedError(first);
}

std::string Recurrence::to_string() const {
  std::string text;
  for (const Input& input : inputs)
    text += fmt::format("live input '{}': rows of {}{}\n", input.name, name_of(input.dtype), input.row.to_string());
  for (const Given& value : given)
    text += fmt::format("given at the start, else zeros: '{}': {}{}\n", value.name, name_of(value.dtype), value.dims.to_string());
  for (const State& state : states)
    text += fmt::format("state '{}': {}{}, {}{}\n", state.name, name_of(state.dtype), state.dims.to_string(), state.origin,
                        state.changes ? "" : ", read only");
  for (const Output& output : outputs)
    text += fmt::format("output '{}': rows of {}{}\n", output.name, name_of(output.dtype), output.row.to_string());
  for (const std::string& name : at_end) text += fmt::format("output '{}': known only at the end, not streamed\n", name);
  return text + "\n" + step.to_string();
}

}  // namespace millrace
