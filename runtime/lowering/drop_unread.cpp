// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/drop_unread.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {

namespace {

/// Takes out the ops that `may_go` allows and whose outputs nobody reads, and then those that only such ops read.
void drop_where(Program& program, const std::function<bool(const Op&, int block)>& may_go) {
  std::map<VarId, int> reads = lowering::reads_of(program);
  std::map<VarId, std::pair<int, std::size_t>> makers;  // block and place of the op
  for (const Block& block : program.blocks()) {
    for (std::size_t i = 0; i < block.ops.size(); ++i)
      for (const VarId var : block.ops[i].outputs) makers[var] = {block.idx, i};
  }
  const auto is_unread = [&](VarId var) { return !reads.contains(var) || reads.at(var) == 0; };
  std::set<std::pair<int, std::size_t>> open, gone;
  for (const auto& [var, place] : makers) open.insert(place);
  while (!open.empty()) {
    const std::pair<int, std::size_t> place = *open.begin();
    open.erase(open.begin());
    const Op& op = program.blocks()[static_cast<std::size_t>(place.first)].ops[place.second];
    if (gone.contains(place) || !std::all_of(op.outputs.begin(), op.outputs.end(), is_unread) || !may_go(op, place.first)) continue;
    gone.insert(place);
    for (const VarId var : op.inputs)
      if (--reads[var] == 0 && makers.contains(var)) open.insert(makers.at(var));
  }
  for (const Block& block : program.blocks()) {
    std::size_t place = 0;
    std::erase_if(program.block(block.idx).ops, [&](const Op&) { return gone.contains({block.idx, place++}); });
  }
}

}  // namespace

void drop_unread_views(Program& program) {
  const auto is_number = [&](VarId var) {
    const VarType& type = program.var(var).type;
    return type.is_tensor() && !is_floating(type.dtype);
  };
  drop_where(program, [&](const Op& op, int) {
    const OpDef& def = program.registry().at(op.type);
    // Exporters compare whole numbers as floats, which are made of whole numbers alone.
    const bool numbers = def.pure && def.prepare && !def.stores &&
                         (std::all_of(op.outputs.begin(), op.outputs.end(), is_number) ||
                          std::all_of(op.inputs.begin(), op.inputs.end(), [&](VarId var) { return var != no_var && is_number(var); }));
    const bool lists =
        def.pure && std::all_of(op.outputs.begin(), op.outputs.end(), [&](VarId var) { return program.var(var).type.is_list(); });
    return def.traits.view || (def.pure && (op.inputs.empty() || def.traits.product)) || numbers || lists;
  });
}

namespace {

/// The arrays that join_runs reads.
std::set<VarId> arrays_of_runs(const Program& program) {
  std::set<VarId> arrays;
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops)
      if (op.type == "join_runs") arrays.insert(op.inputs[0]);
  return arrays;
}

/// The part of `arrays` that no op, output or result reads.
std::set<VarId> written_alone(const Program& program, std::set<VarId> arrays) {
  for (const Program::Port& port : program.outputs()) arrays.erase(port.var);
  for (const Block& block : program.blocks()) {
    for (const VarId result : block.results) arrays.erase(result);
    for (const Op& op : block.ops)
      for (std::size_t i = 0; i < op.inputs.size(); ++i)
        if (op.type != "tensor_array_write" || i > 0) arrays.erase(op.inputs[i]);
  }
  return arrays;
}

void drop_unread_rows(Program& program) {
  drop_where(program, [&](const Op& op, int block) {
    if (op.type == "last_rows" || op.type == "pack" || op.type == "join_runs") return true;
    const OpDef& def = program.registry().at(op.type);
    return block == 0 && def.pure && def.prepare && !def.stores;
  });
}

}  // namespace

void drop_unread(Program& program) {
  const std::set<VarId> before = arrays_of_runs(program);
  drop_unread_rows(program);
  const std::set<VarId> arrays = written_alone(program, before);
  if (arrays.empty()) return;
  const auto unread = [&](const Op& op) { return op.type == "tensor_array_write" && arrays.contains(op.inputs[0]); };
  for (const Block& block : program.blocks()) std::erase_if(program.block(block.idx).ops, unread);
  drop_unread_rows(program);
}

}  // namespace millrace
