// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <utility>
#include <vector>

#include <millrace/runtime/models/export/with_onnx/exporter.h>

namespace millrace::exporting {

/// The export of one loop as a node of ONNX.
struct Exporter::Iteration {
  const Block* body = nullptr;
  std::vector<std::size_t> carried;  ///< places of the carried tensors; arrays and orders are the same ones in every iteration
  VarId condition = no_var;          ///< the parameter that says whether there is an iteration
  std::int64_t max_trips = -1;
  std::size_t test = 0;                         ///< the first ops of the body that only say whether this iteration is one (executable.h)
  bool leaves_late = false;                     ///< a break_if behind them
  VarId counter = no_var;                       ///< the parameter that is 0, 1, 2, …
  std::set<VarId> outputs;                      ///< arrays written once an iteration, at the counter: scanned outputs
  std::vector<std::pair<VarId, VarId>> lagged;  ///< the arrays whose slot of the step before is read, with its boot
  std::set<VarId> general;                      ///< other arrays that the body writes
  bool scan = false;                            ///< as many iterations as the arrays `sliced` have slots
  std::set<VarId> sliced;
};

}  // namespace millrace::exporting
