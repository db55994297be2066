// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/loop_groups.h>

#include <algorithm>
#include <map>
#include <set>

#include <millrace/runtime/lowering/stacked_views.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

/// The vars that the ops of block 0 read and write, their own blocks included, and so the ops that each must have behind it.
class Dependences {
 public:
  explicit Dependences(const Program& program) : program_(program), views_(program) {
    const std::vector<Op>& ops = program.block(0).ops;
    uses_.resize(ops.size());
    for (std::size_t i = 0; i < ops.size(); ++i) {
      for (const VarId output : ops[i].outputs) makers_[output] = i;
      read(ops[i], i);
    }
  }

  /// Ops with a kernel do; so do those of an array of fixed size that ask for its size, or for its slots in another order.
  bool waits_for_inputs_alone(std::size_t place) const {
    const Op& op = program_.block(0).ops[place];
    if (op.type != "tensor_array_size" && op.type != "reorder_steps") return static_cast<bool>(program_.registry().at(op.type).prepare);
    const auto maker = makers_.find(op.inputs[0]);
    if (maker == makers_.end()) return false;
    const Op& made = program_.block(0).ops[maker->second];
    return made.type != "tensor_array" || (!made.attributes.has("window") && !made.attributes.get_or("growable", false));
  }

  /// Results of stacked slots of `group` are computed before they are there, from their extents, and then once more: by ops that may be.
  bool may_run_twice(const LoopGroup& group, const std::set<std::size_t>& ops) const {
    const std::set<VarId> behind = views_.behind(program_, group);
    return std::all_of(ops.begin(), ops.end(), [&](std::size_t place) {
      const Op& op = program_.block(0).ops[place];
      const bool late = std::any_of(op.outputs.begin(), op.outputs.end(), [&](VarId var) { return behind.contains(var); });
      const bool levels =
          std::any_of(op.outputs.begin(), op.outputs.end(), [&](VarId var) { return program_.var(var).type.lod_depth > 0; });
      return !late || (program_.registry().at(op.type).pure && !levels);
    });
  }

  /// Arrays that are fed are written by a task outside, which may read results of this program first.
  bool waits_for_others(std::size_t op) const {
    return std::any_of(uses_[op].begin(), uses_[op].end(), [&](VarId var) {
      return program_.var(var).type.is_array() && program_.var(var).block == 0 && !makers_.contains(var);
    });
  }

  /// Every op that must have run before `op` has what it works on, but for what loops of `beside` write into arrays that it reads, or whose
  /// extents alone count.
  std::set<std::size_t> before(std::size_t op, const LoopGroup& beside) const {
    std::set<std::size_t> found;
    std::vector<std::size_t> open{op};
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      for (const std::size_t needed : at == op ? needs(at, uses_[at], beside) : needs(at, contents(at, beside), {}))
        if (found.insert(needed).second) open.push_back(needed);
    }
    return found;
  }

  /// The inputs of `op` that no op makes, except those that loops of `beside` write.
  std::set<VarId> inputs(std::size_t op, const LoopGroup& beside) const {
    std::set<VarId> found;
    std::set<std::size_t> ops = before(op, beside);
    ops.insert(op);
    for (const std::size_t at : ops)
      for (const VarId var : uses_[at])
        if (program_.var(var).block == 0 && !makers_.contains(var)) found.insert(var);
    return found;
  }

 private:
  void read(const Op& op, std::size_t place) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const VarId var = op.inputs[i];
      if (var == no_var) continue;
      uses_[place].insert(var);
      const auto& stores = program_.registry().at(op.type).stores;
      const bool carries = op.type == "while" && program_.var(var).type.is_array();  // written under another name, it may be
      if (carries || (stores && stores->first == i)) writers_[var].insert(place);
    }
    for (const char* attribute : {"sub_block", "then_block", "else_block"}) {
      if (!op.attributes.has(attribute)) continue;
      const Block& block = program_.block(op.attributes.get<BlockId>(attribute).index);
      for (const Op& inner : block.ops) read(inner, place);
      uses_[place].insert(block.results.begin(), block.results.end());
    }
  }

  /// The vars that `op` uses, except stacked slots of loops of `beside` of which it wants to know the extents only: those do not wait for the slots.
  std::set<VarId> contents(std::size_t op, const LoopGroup& beside) const {
    std::set<VarId> found = uses_[op];
    const Op& at = program_.block(0).ops[op];
    for (std::size_t i = 0; i < at.inputs.size(); ++i) {
      const StackedView* view = StackedViews::reads_extents(program_, at, i) ? views_.find(at.inputs[i]) : nullptr;
      if (view == nullptr || std::count(at.inputs.begin(), at.inputs.end(), at.inputs[i]) > 1) continue;
      const auto writers = writers_.find(view->array);
      const bool known = writers != writers_.end() && std::all_of(writers->second.begin(), writers->second.end(), [&](std::size_t writer) {
                           return std::find(beside.begin(), beside.end(), writer) != beside.end();
                         });
      if (known) found.erase(at.inputs[i]);
    }
    return found;
  }

  std::set<std::size_t> needs(std::size_t op, const std::set<VarId>& uses, const LoopGroup& beside) const {
    std::set<std::size_t> found;
    const bool only_size = program_.block(0).ops[op].type == "tensor_array_size";
    for (const VarId var : uses) {
      if (const auto maker = makers_.find(var); maker != makers_.end() && maker->second != op) found.insert(maker->second);
      const auto writers = writers_.find(var);
      if (writers == writers_.end() || only_size) continue;
      for (const std::size_t writer : writers->second)
        if (writer != op && std::find(beside.begin(), beside.end(), writer) == beside.end()) found.insert(writer);
    }
    return found;
  }

  const Program& program_;
  StackedViews views_;
  std::map<VarId, std::size_t> makers_;
  std::map<VarId, std::set<std::size_t>> writers_;
  std::vector<std::set<VarId>> uses_;
};

/// Whether `loop` may join `group`, which its first loop began.
bool fits(const Dependences& all, const LoopGroup& group, std::size_t loop) {
  const std::set<std::size_t> first = all.before(group[0], {});
  if (first.contains(loop) || all.waits_for_others(loop)) return false;
  // A loop that needs slots of the first loop waits for the first loop's inputs in any case.
  const bool waits = all.waits_for_others(group[0]) ||
                     std::any_of(first.begin(), first.end(), [&](std::size_t needed) { return all.waits_for_others(needed); });
  if (waits && !all.before(loop, {}).contains(group[0])) return false;
  const std::set<std::size_t> before = all.before(loop, group);
  if (!all.may_run_twice(group, before)) return false;
  for (const std::size_t needed : before) {
    if (std::find(group.begin(), group.end(), needed) != group.end()) return false;
    if (!first.contains(needed) && (all.waits_for_others(needed) || !all.waits_for_inputs_alone(needed))) return false;
  }
  return true;
}

}  // namespace

std::vector<LoopGroup> find_loop_groups(const Program& program) {
  std::vector<std::size_t> loops;
  const std::vector<Op>& ops = program.block(0).ops;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].type == "while") loops.push_back(i);
  std::vector<LoopGroup> groups;
  if (loops.size() < 2) return groups;
  const Dependences all(program);
  std::set<std::size_t> taken;
  for (std::size_t i = 0; i < loops.size(); ++i) {
    if (taken.contains(loops[i])) continue;
    LoopGroup group{loops[i]};
    for (std::size_t k = i + 1; k < loops.size(); ++k)
      if (!taken.contains(loops[k]) && fits(all, group, loops[k])) group.push_back(loops[k]);
    if (group.size() < 2) continue;
    taken.insert(group.begin(), group.end());
    groups.push_back(std::move(group));
  }
  return groups;
}

std::vector<std::set<VarId>> inputs_beyond_first(const Program& program, const LoopGroup& group) {
  const Dependences all(program);
  const std::set<VarId> first = all.inputs(group.at(0), {});
  std::vector<std::set<VarId>> made;
  for (const std::size_t loop : group) {
    made.push_back(all.inputs(loop, group));
    for (const VarId var : first) made.back().erase(var);
  }
  return made;
}

std::vector<std::set<std::size_t>> ops_before_each(const Program& program, const LoopGroup& group) {
  const Dependences all(program);
  std::vector<std::set<std::size_t>> made;
  std::set<std::size_t> taken(group.begin(), group.end());
  for (const std::size_t loop : group) {
    made.emplace_back();
    for (const std::size_t op : all.before(loop, group))
      if (taken.insert(op).second) made.back().insert(op);
  }
  return made;
}

}  // namespace millrace
