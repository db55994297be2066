// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/prune.h>

#include <algorithm>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {

Program prune(const Program& program) {
  std::vector<bool> needed(program.vars().size(), false);
  const auto mark = [&](VarId var) {
    if (var != no_var) needed[static_cast<std::size_t>(var)] = true;
  };
  for (const Program::Port& port : program.outputs()) mark(port.var);
  const std::vector<Op>& ops = program.block(0).ops;
  std::vector<bool> kept(ops.size(), false);
  for (std::size_t i = ops.size(); i-- > 0;) {
    const bool used =
        std::any_of(ops[i].outputs.begin(), ops[i].outputs.end(), [&](VarId var) { return needed[static_cast<std::size_t>(var)]; });
    kept[i] = used || !program.registry().at(ops[i].type).pure;
    if (!kept[i]) continue;
    for (const VarId input : ops[i].inputs) mark(input);
  }
  Program made(program.shared_registry());
  made.set_title(program.title());
  std::vector<VarId> to(program.vars().size(), no_var);
  const auto at = [&](VarId var) -> VarId& { return to[static_cast<std::size_t>(var)]; };
  for (const Program::Port& port : program.inputs()) at(port.var) = made.add_input(port.name, program.var(port.var).type);
  for (const auto& [var, value] : program.parameters())
    if (needed[static_cast<std::size_t>(var)]) at(var) = made.add_parameter(program.var(var).name, value);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!kept[i]) continue;
    Op op{ops[i].type, {}, {}, ops[i].attributes, ops[i].label};
    std::vector<std::string> names;
    for (const VarId input : ops[i].inputs) op.inputs.push_back(input == no_var ? no_var : at(input));
    for (const VarId output : ops[i].outputs) names.push_back(program.var(output).name);
    const std::vector<VarId> outputs = made.append(0, std::move(op), names);
    for (std::size_t k = 0; k < outputs.size(); ++k) at(ops[i].outputs[k]) = outputs[k];
  }
  for (const Program::Port& port : program.outputs()) made.add_output(port.name, at(port.var));
  return made;
}

}  // namespace millrace
