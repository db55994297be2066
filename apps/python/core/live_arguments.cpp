// SPDX-License-Identifier: Apache-2.0
#include "live_arguments.h"

#include <optional>
#include <span>

#include <fmt/format.h>

#include "values.h"

namespace millrace::python {

namespace {

/// Nothing where there is no such input: the lowering says so.
std::optional<DType> dtype_of_input(const Program& program, const std::string& name) {
  for (const Program::Port& input : program.inputs())
    if (input.name == name) return program.var(input.var).type.dtype;
  return {};
}

}  // namespace

LiveArguments live_arguments(const char* who, const Program& program, const nb::dict& named) {
  LiveArguments made;
  const auto of = [who](const char* name) { return fmt::format("{}: {}", who, name); };
  made.threads = threads_from(argument<std::int64_t>(named["threads"], of("threads"), "an integer"), who);
  const auto backend = argument<std::string>(named["backend"], of("backend"), "text");
  const std::optional<Backend> chosen = backend_of(backend);
  if (!chosen) throw ArgumentError(fmt::format("{}: expected the backend auto, interpreted, captured or fused, found '{}'", who, backend));
  made.backend = *chosen;
  made.max_rows = argument<std::size_t>(named["max_rows"], of("max_rows"), "an integer from 0 on");
  made.sessions = argument<std::size_t>(named["sessions"], of("sessions"), "an integer from 0 on");
  const auto states = argument<std::map<std::string, std::string>>(named["states"], of("states"), "names of outputs by names of inputs");
  made.states.assign(states.begin(), states.end());
  for (const auto& [key, value] : nb::cast<nb::dict>(named["constants"])) {
    const auto name = argument<std::string>(key, of("constants"), "the name of an input");
    made.constants.emplace(name, copy_of(tensor_from(value, dtype_of_input(program, name))));
  }
  using Extents = std::map<std::string, std::vector<std::int64_t>>;
  for (const auto& [name, row] : argument<Extents>(named["rows"], of("rows"), "extents of a row by names of inputs"))
    made.rows.emplace(name, DDim(std::span<const std::int64_t>(row)));
  const nb::object key = named["state_key"];
  if (!key.is_none()) {
    if (!nb::isinstance<nb::bytes>(key))
      throw nb::type_error(fmt::format("{}: state_key: expected bytes, found a {}", who, kind_of(key)).c_str());
    const auto secret = nb::cast<nb::bytes>(key);
    made.state_key = std::make_shared<const StateKey>(std::string(secret.c_str(), secret.size()));
  }
  return made;
}

nb::dict ports_of(const Recurrence& recurrence, bool inputs) {
  nb::dict made;
  const auto add_all = [&](const auto& ports) {
    for (const auto& port : ports) made[port.name.c_str()] = std::string(name_of(port.dtype)) + port.row.to_string();
  };
  const auto add = [&](const auto& of) { inputs ? add_all(of.inputs) : add_all(of.outputs); };
  add(recurrence);
  for (const Recurrence::Boundary& boundary : recurrence.boundaries) add(boundary);
  return made;
}

}  // namespace millrace::python
