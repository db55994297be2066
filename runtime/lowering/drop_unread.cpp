// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/drop_unread.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {

void drop_unread_views(Program& program) {
  std::map<VarId, std::size_t> reads;
  for (const Program::Port& port : program.outputs()) ++reads[port.var];
  std::map<VarId, std::pair<int, std::size_t>> makers;  // block and place of the op
  for (const Block& block : program.blocks()) {
    for (const VarId var : block.results) ++reads[var];
    for (std::size_t i = 0; i < block.ops.size(); ++i) {
      for (const VarId var : block.ops[i].inputs) ++reads[var];
      for (const VarId var : block.ops[i].outputs) makers[var] = {block.idx, i};
    }
  }
  const auto is_number = [&](VarId var) {
    const VarType& type = program.var(var).type;
    return type.is_tensor() && !is_floating(type.dtype) && (type.rank() == 0 || type.rank() == 1);
  };
  const auto is_unread = [&](const Op& op) {
    const OpDef& def = program.registry().at(op.type);
    // Exporters compare whole numbers as floats, which are made of whole numbers alone.
    const bool numbers = def.pure && def.prepare && !def.stores &&
                         (std::all_of(op.outputs.begin(), op.outputs.end(), is_number) ||
                          std::all_of(op.inputs.begin(), op.inputs.end(), [&](VarId var) { return var != no_var && is_number(var); }));
    return (def.traits.view || (def.pure && (op.inputs.empty() || def.traits.product)) || numbers) &&
           std::all_of(op.outputs.begin(), op.outputs.end(), [&](VarId var) { return !reads.contains(var) || reads.at(var) == 0; });
  };
  std::set<std::pair<int, std::size_t>> open, gone;
  for (const auto& [var, place] : makers) open.insert(place);
  while (!open.empty()) {
    const std::pair<int, std::size_t> place = *open.begin();
    open.erase(open.begin());
    const Op& op = program.blocks()[static_cast<std::size_t>(place.first)].ops[place.second];
    if (gone.contains(place) || !is_unread(op)) continue;
    gone.insert(place);
    for (const VarId var : op.inputs)
      if (--reads[var] == 0 && makers.contains(var)) open.insert(makers.at(var));
  }
  for (const Block& block : program.blocks()) {
    std::size_t place = 0;
    std::erase_if(program.block(block.idx).ops, [&](const Op&) { return gone.contains({block.idx, place++}); });
  }
}

void drop_unread(Program& program) {
  std::set<VarId> read;
  for (const Program::Port& port : program.outputs()) read.insert(port.var);
  for (const Block& block : program.blocks()) {
    read.insert(block.results.begin(), block.results.end());
    for (const Op& op : block.ops) read.insert(op.inputs.begin(), op.inputs.end());
  }
  for (const Block& block : program.blocks())
    std::erase_if(program.block(block.idx).ops, [&](const Op& op) { return op.type == "last_rows" && !read.contains(op.outputs.at(0)); });
}

}  // namespace millrace
