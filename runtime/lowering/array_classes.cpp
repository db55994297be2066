// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/array_classes.h>

#include <algorithm>
#include <numeric>

namespace millrace {

ArrayClasses::ArrayClasses(const Program& program)
    : parent_(program.vars().size()), home_(program.vars().size(), -1), makers_(program.vars().size()) {
  std::iota(parent_.begin(), parent_.end(), std::size_t{0});
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops) follow(program, op);
  for (std::size_t var = 0; var < parent_.size(); ++var) {
    const VarDef& def = program.var(static_cast<VarId>(var));
    if (!def.type.is_array()) continue;
    int& home = home_[id(static_cast<VarId>(var))];
    home = home < 0 ? def.block : common_block(program, home, def.block);
  }
  const auto add_maker = [&](VarId var) {
    if (program.var(var).type.is_array()) makers_[id(var)].push_back(var);
  };
  for (const Program::Port& port : program.inputs()) add_maker(port.var);
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops)
      if (op.type != "while" && op.type != "if") std::for_each(op.outputs.begin(), op.outputs.end(), add_maker);
  for (std::size_t each = 0; each < makers_.size(); ++each)
    if (std::any_of(makers_[each].begin(), makers_[each].end(), [&](VarId var) { return program.var(var).block != home_[each]; }))
      makers_[each].clear();
}

std::size_t ArrayClasses::id(VarId array) const {
  auto at = static_cast<std::size_t>(array);
  while (parent_[at] != at) at = parent_[at];
  return at;
}

void ArrayClasses::unite(const Program& program, VarId a, VarId b) {
  if (program.var(a).type.is_array() && program.var(b).type.is_array()) parent_[id(b)] = id(a);
}

void ArrayClasses::follow(const Program& program, const Op& op) {
  if (op.type == "while") {
    const Block& body = program.block(op.attributes.get<BlockId>("sub_block").index);
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      unite(program, body.params[i], op.inputs[i]);
      unite(program, body.params[i], body.results[i]);
      unite(program, body.params[i], op.outputs[i]);
      for (const Op& inner : body.ops)
        if (inner.type == "break_if") unite(program, body.params[i], inner.inputs[i + 1]);
    }
  } else if (op.type == "if") {
    for (const char* branch : {"then_block", "else_block"}) {
      const Block& block = program.block(op.attributes.get<BlockId>(branch).index);
      for (std::size_t i = 0; i < op.outputs.size(); ++i) unite(program, op.outputs[i], block.results[i]);
    }
  }
}

int ArrayClasses::common_block(const Program& program, int a, int b) {
  // A block stands behind its parent.
  while (a != b) (a > b ? a : b) = program.block(std::max(a, b)).parent_idx;
  return a;
}

}  // namespace millrace
