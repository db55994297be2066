// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/autodiff/append_backward.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"

/// Gradients of programs without a loss of their own.
namespace millrace::testing {

/// `from` with the output `loss`, the sum of its floating outputs times the inputs `seed_K`, and with d_NAME for each floating input and
/// parameter, zeros where the loss does not depend on it. Its own outputs stay.
inline Program with_gradients(const Program& from) {
  Program to = from;
  const auto append = [&to](const std::string& type, std::vector<VarId> inputs, Attributes attributes = {}) {
    return to.append(0, Op{type, std::move(inputs), {}, std::move(attributes), {}}).at(0);
  };
  const auto plain = [&](VarId var) { return to.var(var).type.lod_depth > 0 ? append("drop_lod", {var}) : var; };
  std::vector<VarId> leaves;
  const auto leaf = [&](VarId var) {
    if (is_floating(to.var(var).type.dtype)) leaves.push_back(var);
  };
  for (const Program::Port& port : from.inputs()) leaf(port.var);
  for (const auto& [var, value] : from.parameters()) leaf(var);
  VarId loss = no_var;
  std::size_t count = 0;
  for (const Program::Port& port : from.outputs()) {
    VarType type = to.var(port.var).type;
    if (!is_floating(type.dtype)) continue;
    type.lod_depth = 0;
    const VarId seed = to.add_input("seed_" + std::to_string(count++), type);
    const VarId all = append("mul", {plain(port.var), seed});
    const VarId term = append("reduce", {all}, {{"kind", std::string("sum")}, {"keepdims", false}});
    loss = loss == no_var ? term : append("add", {loss, term});
  }
  to.add_output("loss", loss);
  for (const Gradient& found : append_backward(to, loss, {.with_respect_to = leaves})) {
    VarId gradient = found.gradient;
    if (gradient == no_var) {
      gradient = append("mul", {found.var, append("cast", {append("constant", {}, {{"value", Tensor::scalar(0.0)}})},
                                                  {{"to", to.var(found.var).type.dtype}})});
    }
    to.add_output("d_" + to.var(found.var).name, gradient);
  }
  return to;
}

/// Feeds with random seeds for the outputs of `from`.
inline Feeds with_seeds(const Program& from, const Feeds& feeds, Random& random) {
  Feeds all = feeds;
  const RunResult found = on_cpu(from, feeds);
  std::size_t count = 0;
  for (const Program::Port& port : from.outputs()) {
    const Tensor out = found.value(port.name).tensor().tensor();
    if (is_floating(out.dtype())) all.emplace("seed_" + std::to_string(count++), random_tensor(random, out.dims(), 1, out.dtype()));
  }
  return all;
}

}  // namespace millrace::testing
