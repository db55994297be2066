// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/drop_unread.h>

#include <algorithm>
#include <set>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {

namespace {

/// The vars that ops, blocks and outputs read.
std::set<VarId> read_vars(const Program& program) {
  std::set<VarId> read;
  for (const Program::Port& port : program.outputs()) read.insert(port.var);
  for (const Block& block : program.blocks()) {
    read.insert(block.results.begin(), block.results.end());
    for (const Op& op : block.ops) read.insert(op.inputs.begin(), op.inputs.end());
  }
  return read;
}

}  // namespace

void drop_unread_views(Program& program) {
  const auto is_number = [&](VarId var) {
    const VarType& type = program.var(var).type;
    return type.is_tensor() && !is_floating(type.dtype) && (type.rank() == 0 || type.rank() == 1);
  };
  for (bool dropped = true; dropped;) {
    const std::set<VarId> read = read_vars(program);
    const auto is_unread = [&](const Op& op) {
      const OpDef& def = program.registry().at(op.type);
      const bool numbers = def.pure && def.prepare && !def.stores && std::all_of(op.outputs.begin(), op.outputs.end(), is_number);
      return (def.traits.view || (def.pure && (op.inputs.empty() || def.traits.product)) || numbers) &&
             std::none_of(op.outputs.begin(), op.outputs.end(), [&](VarId var) { return read.contains(var); });
    };
    dropped = false;
    for (const Block& block : program.blocks()) dropped = std::erase_if(program.block(block.idx).ops, is_unread) > 0 || dropped;
  }
}

void drop_unread(Program& program) {
  const std::set<VarId> read = read_vars(program);
  for (const Block& block : program.blocks())
    std::erase_if(program.block(block.idx).ops, [&](const Op& op) { return op.type == "last_rows" && !read.contains(op.outputs.at(0)); });
}

}  // namespace millrace
