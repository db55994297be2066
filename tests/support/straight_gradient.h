// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/internal/gradients.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"

/// Gradients of programs without control flow, by the rules of their ops alone.
namespace millrace::testing {

/// Where the rules of a straight-line program append.
class StraightLine final : public GradientContext {
 public:
  explicit StraightLine(Program& program) : program_(program) {}
  const Program& program() const override { return program_; }
  const Op& op() const override { return none_; }
  bool wants(std::size_t) const override { return false; }
  VarId input(std::size_t) override { return no_var; }
  VarId output(std::size_t) override { return no_var; }
  VarId gradient(std::size_t) const override { return no_var; }
  std::vector<VarId> append(Op op) override { return program_.append(0, std::move(op)); }
  void set(std::size_t, VarId) override {}

 private:
  Program& program_;
  Op none_;
};

/// `from` with the output `loss`, the sum of its floating outputs times the inputs `seed_K`, and with d_NAME for each floating input and
/// parameter. Its own outputs stay.
inline Program with_gradients(const Program& from) {
  Program to(from.shared_registry());
  StraightLine line(to);
  ops::Tape tape(line);
  std::map<VarId, VarId> made{{no_var, no_var}};
  std::map<std::string, ops::Term> leaves;
  const auto leaf = [&](const std::string& name, VarId var) {
    if (is_floating(to.var(var).type.dtype)) leaves.emplace(name, ops::Term(tape, var));
  };
  for (const Program::Port& port : from.inputs()) {
    made[port.var] = to.add_input(port.name, from.var(port.var).type);
    leaf(port.name, made[port.var]);
  }
  for (const auto& [var, value] : from.parameters()) {
    made[var] = to.add_parameter(from.var(var).name, value);
    leaf(to.var(made[var]).name, made[var]);
  }
  for (Op op : from.block(0).ops) {
    const std::vector<VarId> outputs = op.outputs;
    for (VarId& input : op.inputs) input = made.at(input);
    op.outputs.clear();
    const std::vector<VarId> copies = tape.append(std::move(op));
    for (std::size_t i = 0; i < outputs.size(); ++i) made[outputs[i]] = copies[i];
  }
  ops::Term loss;
  std::size_t count = 0;
  for (const Program::Port& port : from.outputs()) {
    const VarId out = made.at(port.var);
    to.add_output(port.name, out);
    if (!is_floating(to.var(out).type.dtype)) continue;
    VarType type = to.var(out).type;
    type.lod_depth = 0;
    const ops::Term seed(tape, to.add_input("seed_" + std::to_string(count++), type));
    const ops::Term term = ops::reduced("sum", ops::plain(ops::Term(tape, out)) * seed, {}, false);
    loss = loss.defined() ? loss + term : term;
  }
  to.add_output("loss", loss.var());
  tape.seed(loss, ops::number(line, 1, loss.dtype()));
  std::vector<ops::Term> all;
  for (const auto& [name, term] : leaves) all.push_back(term);
  tape.run(all);
  for (const auto& [name, term] : leaves) {
    ops::Term found = tape.gradient_of(term);
    const ops::Term at(line, term.var());
    if (!found.defined()) found = ops::zeros_like(ops::plain(at));
    if (term.type().lod_depth > 0) found = ops::call("lod_reset", {ops::plain(found), ops::Term(), at});
    to.add_output("d_" + name, found.var());
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
