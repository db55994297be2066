// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/spell_cells.h>

#include <algorithm>
#include <utility>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/internal/cells.h>
#include <millrace/runtime/program/ops/internal/lstm_form.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace::layers {
namespace {

using build::Var;

LstmOptions options_of(const Op& op, std::size_t products) {
  ops::lstm_form(op, products);  // refuses what no cell takes
  LstmOptions options;
  Activation* all[] = {&options.gate, &options.candidate, &options.output};
  const auto names = op.attributes.get_or("activations", std::vector<std::string>{"sigmoid", "tanh", "tanh"});
  const auto alphas = op.attributes.get_or("alphas", std::vector<double>{});
  const auto betas = op.attributes.get_or("betas", std::vector<double>{});
  for (std::size_t i = 0; i < 3; ++i) {
    const ops::UnaryName* named = ops::find_activation(names[i]);
    *all[i] = Activation{named->name};
    if (!alphas.empty() && named->alpha != nullptr) all[i]->alpha = alphas[i];
    if (!betas.empty() && named->beta != nullptr) all[i]->beta = betas[i];
  }
  options.gate_clip = op.attributes.get_or("clip", 0.0);
  options.couple_input_forget = op.attributes.get_or("input_forget", false);
  return options;
}

/// Appends the parts of `op` to the block that is being built.
internal::LstmParts spell(const Op& op) {
  const auto in = [&](std::size_t at) { return at < op.inputs.size() && op.inputs[at] != no_var ? Var::of(op.inputs[at]) : Var(); };
  const bool whole = op.type == "lstm_cell";
  const std::size_t bias = whole ? ops::in_bias : ops::in_bias - 2;
  const Var c = in(ops::in_c);
  const VarType type = c.type();  // its own: the vars of a program move when it grows
  if (type.rank() != 2 || (*type.shape)[1] == DDim::unknown)
    throw ProgramError("spell_cell: expected a cell of so many units, found '" + c.name() + "' of " + type.to_string());
  Var sums;
  if (whole) {
    sums = internal::preactivation(in(ops::in_x), in(ops::in_w), in(ops::in_h), in(ops::in_r), in(bias));
  } else {
    sums = in(bias).defined() ? in(1) + in(bias) : in(1);
    sums = sums + in(0);
  }
  return internal::lstm_parts(sums, c, in(bias + 1), (*type.shape)[1], options_of(op, whole ? 2 : 0));
}

}  // namespace

bool spell_cell(Program& program, VarId h) {
  const int block = program.var(h).block;
  const std::vector<Op>& all = program.block(block).ops;
  const auto cell = std::find_if(all.begin(), all.end(),
                                 [h](const Op& op) { return (op.type == "lstm_cell" || op.type == "lstm_gates") && op.outputs[0] == h; });
  if (cell == all.end()) return false;
  Program made = program;
  std::vector<Op> ops = std::exchange(made.block(block).ops, {});
  for (Op& op : ops) {
    if (op.outputs.empty() || op.outputs[0] != h) {
      made.append_raw(block, std::move(op));
      continue;
    }
    build::Guard guard(made);
    const build::BlockGuard at(guard, block);
    const internal::LstmParts parts = spell(op);
    const std::string name = made.var(h).name;
    const std::pair<const char*, const Var*> named[] = {
        {".i", &parts.i}, {".f", &parts.f}, {".g", &parts.g}, {".o", &parts.o}, {".a", &parts.shown}};
    for (const auto& [part, var] : named) made.rename(var->id(), name + part);
    made.append_raw(block, Op{"identity", {parts.h.id()}, {op.outputs[0]}, {}, op.label});
    made.append_raw(block, Op{"identity", {parts.c.id()}, {op.outputs[1]}, {}, op.label});
  }
  program = std::move(made);
  return true;
}

}  // namespace millrace::layers
