// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/clone_block.h>

#include <algorithm>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::autodiff {
namespace {

class Cloner {
 public:
  Cloner(Program& program, std::map<VarId, VarId>& vars, std::set<VarId>& active) : program_(program), vars_(vars), active_(active) {}

  void clone(int from, int to, bool breaks) {
    const std::vector<Op> ops = program_.block(from).ops;
    for (const Op& op : ops)
      if ((breaks || op.type != "break_if") && !writes_outside(op)) program_.append_raw(to, copy(op, to));
  }

 private:
  VarId at(VarId var) const {
    const auto found = vars_.find(var);
    return found == vars_.end() ? var : found->second;
  }
  bool writes_outside(const Op& op) const {
    const auto& stores = program_.registry().at(op.type).stores;
    return stores && !vars_.contains(op.inputs.at(stores->first));
  }
  VarId copy(VarId var, int to) {
    const VarDef def = program_.var(var);
    const VarId made = program_.add_var(def.name, def.type, to);
    vars_[var] = made;
    if (active_.contains(var)) active_.insert(made);
    return made;
  }
  Op copy(const Op& op, int to) {
    Op made{op.type, {}, {}, op.attributes, op.label};
    for (const VarId input : op.inputs) made.inputs.push_back(input == no_var ? no_var : at(input));
    for (const auto& [name, attribute] : op.attributes)
      if (const auto* id = std::get_if<BlockId>(&attribute)) made.attributes.set(name, BlockId{copy_block(id->index, to)});
    for (const VarId output : op.outputs) made.outputs.push_back(copy(output, to));
    return made;
  }
  int copy_block(int from, int parent) {
    const int to = program_.add_block(parent);
    const std::vector<VarId> params = program_.block(from).params;
    for (const VarId param : params) {
      const VarId made = copy(param, to);
      program_.block(to).params.push_back(made);
    }
    clone(from, to, true);
    const std::vector<VarId> results = program_.block(from).results;
    for (const VarId result : results) program_.block(to).results.push_back(at(result));
    return to;
  }

  Program& program_;
  std::map<VarId, VarId>& vars_;
  std::set<VarId>& active_;
};

void collect_read(const Program& program, int block, std::set<VarId>& read) {
  for (const Op& op : program.block(block).ops) {
    read.insert(op.inputs.begin(), op.inputs.end());
    for_each_sub_block(op, [&](int inner) { collect_read(program, inner, read); });
  }
  const std::vector<VarId>& results = program.block(block).results;
  read.insert(results.begin(), results.end());
}

/// Arrays that the op, or a block of it, writes.
void collect_written(const Program& program, const Op& op, std::set<VarId>& written) {
  if (const auto& stores = program.registry().at(op.type).stores) written.insert(op.inputs.at(stores->first));
  for_each_sub_block(op, [&](int block) {
    for (const Op& inner : program.block(block).ops) collect_written(program, inner, written);
  });
}

}  // namespace

std::vector<Op> clone_ops(Program& program, int from, int to, std::map<VarId, VarId>& vars, std::set<VarId>& active) {
  const std::size_t begin = program.block(to).ops.size();
  Cloner(program, vars, active).clone(from, to, false);
  const std::vector<Op>& ops = program.block(to).ops;
  return {ops.begin() + static_cast<std::ptrdiff_t>(begin), ops.end()};
}

void drop_dead_ops(Program& program, int block) {
  std::set<VarId> live(program.block(block).results.begin(), program.block(block).results.end());
  std::vector<Op> kept;
  std::vector<Op>& ops = program.block(block).ops;
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    std::set<VarId> made(op->outputs.begin(), op->outputs.end());
    collect_written(program, *op, made);
    const bool needed = op->type == "break_if" || std::any_of(made.begin(), made.end(), [&](VarId var) { return live.contains(var); });
    if (!needed) continue;
    live.insert(op->inputs.begin(), op->inputs.end());
    for_each_sub_block(*op, [&](int inner) { collect_read(program, inner, live); });
    kept.push_back(std::move(*op));
  }
  std::reverse(kept.begin(), kept.end());
  ops = std::move(kept);
}

std::set<VarId> vars_read(const Program& program, int block) {
  std::set<VarId> read;
  collect_read(program, block, read);
  return read;
}

}  // namespace millrace::autodiff
