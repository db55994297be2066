// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/streaming/live/batcher.h>
#include <millrace/streaming/live/state_key.h>

#include "bind.h"

/// The arguments and properties that a LiveModel and a Server have in common.
namespace millrace::python {

struct LiveArguments {
  int threads = 1;
  Backend backend = Backend::automatic;
  std::size_t max_rows = 0;
  std::size_t sessions = 0;
  std::vector<std::pair<std::string, std::string>> states;
  std::map<std::string, Tensor> constants;
  std::map<std::string, DDim> rows;
  std::shared_ptr<const StateKey> state_key;
};

/// From the dict that millrace.live makes; constants take the dtypes of the inputs of `program`. ArgumentError begins with `who`.
LiveArguments live_arguments(const char* who, const Program& program, const nb::dict& named);

/// Names of the inputs or outputs of a step and of inner sequences, with the type of one row.
nb::dict ports_of(const Recurrence& recurrence, bool inputs);

/// Defines the properties of millrace.live._Live. Each function takes the object: `recurrence`, `live_sessions`, `stats` (Batcher::Stats).
template <class T, class R, class N, class S>
void bind_live_figures(nb::class_<T>& c, R recurrence, N live_sessions, S stats) {
  c.def_prop_ro(
       "inputs", [recurrence](const T& self) { return ports_of(recurrence(self), true); }, nb::sig("def inputs(self) -> dict[str, str]"))
      .def_prop_ro(
          "outputs", [recurrence](const T& self) { return ports_of(recurrence(self), false); },
          nb::sig("def outputs(self) -> dict[str, str]"))
      .def_prop_ro("levels", [recurrence](const T& self) { return recurrence(self).levels; })
      .def_prop_ro("live_sessions", [live_sessions](const T& self) { return live_sessions(self); })
      .def_prop_ro("stats",
                   [stats](const T& self) {
                     const Batcher::Stats found = stats(self);
                     return std::map<std::string, std::uint64_t>{{"ticks", found.ticks}, {"rows", found.rows}, {"largest", found.largest}};
                   })
      .def("__str__", [recurrence](const T& self) { return recurrence(self).to_string(); });
}

}  // namespace millrace::python
