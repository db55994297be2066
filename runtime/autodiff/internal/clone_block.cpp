// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/clone_block.h>

#include <algorithm>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::autodiff {
namespace {

class Cloner {
 public:
  Cloner(Program& program, std::map<VarId, VarId>& vars, std::set<VarId>& active, bool writes)
      : program_(program), vars_(vars), active_(active), writes_(writes) {}

  void clone(int from, int to, bool breaks) {
    const std::vector<Op> ops = program_.block(from).ops;
    for (const Op& op : ops) {
      if (!breaks && op.type == "break_if") continue;
      Op made = copy(op, to);
      if (writes_outside(op)) as_written(made);
      program_.append_raw(to, std::move(made));
    }
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

 private:
  VarId at(VarId var) const {
    const auto found = vars_.find(var);
    return found == vars_.end() ? var : found->second;
  }
  bool writes_outside(const Op& op) const {
    const VarId array = written_array(program_, op);
    return array != no_var && !writes_ && !vars_.contains(array);
  }
  /// The slot has the value already: the op stands for the gradient alone.
  void as_written(Op& op) const {
    if (op.type != "tensor_array_write" && op.type != "tensor_array_written")
      throw UnsupportedError("append_backward: op " + op.type + ": writes '" + program_.var(op.inputs[0]).name +
                             "' in a loop or branch, and has no gradient rule");
    op.type = "tensor_array_written";
    op.attributes = {};
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
  Program& program_;
  std::map<VarId, VarId>& vars_;
  std::set<VarId>& active_;
  const bool writes_;
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
  Cloner(program, vars, active, false).clone(from, to, false);
  const std::vector<Op>& ops = program.block(to).ops;
  return {ops.begin() + static_cast<std::ptrdiff_t>(begin), ops.end()};
}

int clone_body(Program& program, int body, int parent, std::set<VarId>& active) {
  std::map<VarId, VarId> vars;
  return Cloner(program, vars, active, true).copy_block(body, parent);
}

Program without_unowned_blocks(const Program& program) {
  std::map<int, int> places{{0, 0}};
  std::vector<int> owned{0};
  for (std::size_t i = 0; i < owned.size(); ++i)
    for (const Op& op : program.block(owned[i]).ops) for_each_sub_block(op, [&](int block) { owned.push_back(block); });
  std::sort(owned.begin(), owned.end());
  Program made(program.shared_registry());
  made.set_title(program.title());
  for (std::size_t i = 1; i < owned.size(); ++i) places[owned[i]] = made.add_block(places.at(program.block(owned[i]).parent_idx));
  std::map<VarId, const Program::Port*> inputs;
  for (const Program::Port& port : program.inputs()) inputs[port.var] = &port;
  for (std::size_t i = 0; i < program.vars().size(); ++i) {
    const auto id = static_cast<VarId>(i);
    const VarDef& var = program.vars()[i];
    const auto place = places.find(var.block);
    const VarId same = inputs.contains(id)                ? made.add_input(inputs.at(id)->name, var.type, inputs.at(id)->extents)
                       : program.parameter(id) != nullptr ? made.add_parameter(var.name, *program.parameter(id))
                                                          : made.add_var(var.name, var.type, place == places.end() ? 0 : place->second);
    made.var(same).type = var.type;
    made.rename(same, var.name);
  }
  for (const int block : owned) {
    made.block(places.at(block)).params = program.block(block).params;
    made.block(places.at(block)).results = program.block(block).results;
    for (Op op : program.block(block).ops) {
      const Op given = op;
      for (const auto& [name, attribute] : given.attributes)
        if (const auto* id = std::get_if<BlockId>(&attribute)) op.attributes.set(name, BlockId{places.at(id->index)});
      made.append_raw(places.at(block), std::move(op));
    }
  }
  for (const Program::Port& port : program.outputs()) made.add_output(port.name, port.var);
  return made;
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
