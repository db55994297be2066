// SPDX-License-Identifier: Apache-2.0
#include "live_arguments.h"

#include <optional>
#include <span>

#include <fmt/format.h>

#include "values.h"

namespace millrace::python {

LiveArguments live_arguments(const char* who, const nb::dict& named) {
  LiveArguments made;
  made.threads = nb::cast<int>(named["threads"]);
  if (made.threads < 1) throw ArgumentError(fmt::format("{}: expected 1 thread or more, found {}", who, made.threads));
  const auto backend = nb::cast<std::string>(named["backend"]);
  const std::optional<Backend> chosen = backend_of(backend);
  if (!chosen) throw ArgumentError(fmt::format("{}: expected the backend auto, interpreted, captured or fused, found '{}'", who, backend));
  made.backend = *chosen;
  made.max_rows = nb::cast<std::size_t>(named["max_rows"]);
  made.sessions = nb::cast<std::size_t>(named["sessions"]);
  const auto states = nb::cast<std::map<std::string, std::string>>(named["states"]);
  made.states.assign(states.begin(), states.end());
  for (const auto& [name, value] : nb::cast<nb::dict>(named["constants"]))
    made.constants.emplace(nb::cast<std::string>(name), copy_of(tensor_from(value)));
  for (const auto& [name, row] : nb::cast<std::map<std::string, std::vector<std::int64_t>>>(named["rows"]))
    made.rows.emplace(name, DDim(std::span<const std::int64_t>(row)));
  const nb::object key = named["state_key"];
  if (!key.is_none()) {
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
