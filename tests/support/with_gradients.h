// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/program/check.h>

namespace millrace::testing {

/// Appends the gradients of `loss` to `program`, each as an output `d_NAME`; all exist. Gives the names of the vars.
inline std::vector<std::string> with_gradients(Program& program, VarId loss, const BackwardOptions& options) {
  std::vector<std::string> names;
  for (const Gradient& each : append_backward(program, loss, options)) {
    std::string name = program.var(each.var).name;
    INFO("gradient of ", name);
    REQUIRE(each.gradient != no_var);
    program.add_output("d_" + name, each.gradient);
    names.push_back(std::move(name));
  }
  check(program);
  return names;
}

}  // namespace millrace::testing
