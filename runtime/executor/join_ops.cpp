// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/join_ops.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

using Form = RowGroup::Form;

/// A group reads no element on the host, and its outputs carry no LoD.
const OpDef& group_def() {
  static const OpDef def = [] {
    OpDef made;
    made.name = "row group";
    made.passes_lod = false;
    return made;
  }();
  return def;
}

class Joiner {
 public:
  Joiner(const CompiledProgram& compiled, const CompiledBlock& block)
      : compiled_(compiled), program_(compiled.program), block_(block), has_orders_(has_orders(compiled.program)) {}

  std::optional<CompiledBlock> run() {
    place_.resize(block_.ops.size());
    for (std::size_t i = 0; i < block_.ops.size(); ++i) {
      const std::optional<Key> key = key_of(block_.ops[i]);
      flush_read_by(block_.ops[i], key);
      if (key)
        open_[*key].push_back(i);
      else
        add(i);
    }
    flush_all();
    if (!joined_) return std::nullopt;
    return finish();
  }

 private:
  /// Whether any value may be a slot with an order; an array from outside may hold some.
  static bool has_orders(const Program& program) {
    const auto ordered = [](const auto& var) { return var.type.ordered || var.type.kind == VarKind::order; };
    const auto is_array = [&](const Program::Port& port) { return program.var(port.var).type.is_array(); };
    return std::any_of(program.vars().begin(), program.vars().end(), ordered) ||
           std::any_of(program.inputs().begin(), program.inputs().end(), is_array);
  }

  /// Ops of one key may be one group.
  using Key = std::pair<Form, DType>;

  /// The key of an op that a group may have; nothing for others.
  std::optional<Key> key_of(const CompiledOp& op) const {
    if (op.kind != CompiledOp::Kind::kernel || !op.def->pure || !op.checked_outputs.empty() || op.outputs.empty()) return std::nullopt;
    const Form form = RowGroup::form_of(program_, *op.op);
    if (form == Form::none) return std::nullopt;
    // An op that hands on its operand keeps the order of a slot; the outputs of a group have no order.
    if (program_.registry().at(op.op->type).traits.forwards && has_orders_) return std::nullopt;
    DType dtype = DType::f32;  // integers and bool go with numbers of f32
    for (const auto* vars : {&op.op->outputs, &op.op->inputs})
      for (const VarId var : *vars)
        if (var != no_var && is_floating(program_.var(var).type.dtype)) dtype = program_.var(var).type.dtype;
    try {
      const Op* const alone = op.op;
      RowGroup(program_, {&alone, 1}, form, op.op->outputs);
    } catch (const Error&) {
      return std::nullopt;
    }
    return Key{form, dtype};
  }

  /// Groups whose outputs the op reads end before it; those of its own key may take it along.
  void flush_read_by(const CompiledOp& op, const std::optional<Key>& key) {
    if (op.kind == CompiledOp::Kind::break_if) return flush_all();
    std::set<VarId> reads(op.op->inputs.begin(), op.op->inputs.end());
    for (const int sub : {op.sub_block, op.else_block})
      if (sub >= 0) collect_reads(sub, reads);
    for (auto& [each, members] : open_)
      if (each != key && std::any_of(members.begin(), members.end(), [&](std::size_t member) { return makes_any(member, reads); }))
        flush(members, each.first);
  }
  bool makes_any(std::size_t op, const std::set<VarId>& vars) const {
    const std::vector<VarId>& made = block_.ops[op].op->outputs;
    return std::any_of(made.begin(), made.end(), [&](VarId var) { return vars.contains(var); });
  }
  void collect_reads(int block, std::set<VarId>& reads) const {
    const CompiledBlock& inner = compiled_.block(block);
    for (const CompiledOp& op : inner.ops) {
      reads.insert(op.op->inputs.begin(), op.op->inputs.end());
      for (const int sub : {op.sub_block, op.else_block})
        if (sub >= 0) collect_reads(sub, reads);
    }
    reads.insert(inner.block->results.begin(), inner.block->results.end());
  }

  void add(std::size_t op) {
    place_[op] = made_.size();
    made_.push_back(block_.ops[op]);
  }

  void flush_all() {
    for (auto& [key, members] : open_) flush(members, key.first);
  }
  void flush(std::vector<std::size_t>& members, Form form) { place(std::exchange(members, {}), form); }
  /// Ops that do not fit as one group, such as a long chain of products of integers, are two.
  void place(const std::vector<std::size_t>& ops, Form form) {
    if (ops.size() < 2) {
      for (const std::size_t op : ops) add(op);
    } else if (!join(ops, form)) {
      const auto half = ops.begin() + static_cast<std::ptrdiff_t>(ops.size() / 2);
      place({ops.begin(), half}, form);
      place({half, ops.end()}, form);
    }
  }

  /// Appends the ops as a group. False where they fit one by one and not together.
  bool join(const std::vector<std::size_t>& ops, Form form) {
    std::vector<const Op*> members;
    for (const std::size_t op : ops) members.push_back(block_.ops[op].op);
    CompiledOp group;
    std::vector<VarId> outputs;
    for (const std::size_t op : ops)
      for (const VarId output : block_.ops[op].op->outputs)
        if (is_read_outside(output, ops)) outputs.push_back(output);
    if (outputs.empty()) return false;
    try {
      group.group = std::make_shared<const RowGroup>(program_, members, form, outputs);
    } catch (const Error&) {
      return false;
    }
    // An error of the group, such as a lack of memory, is one of its first op.
    const CompiledOp& first = block_.ops[ops.front()];
    group.op = first.op;
    group.def = &group_def();
    group.kernel = [rows = group.group.get()](OpContext& context) { rows->run(context); };
    const auto of_chain = std::find_if(ops.begin(), ops.end(), [&](std::size_t op) { return !block_.ops[op].on_host; });
    group.stream = of_chain == ops.end() ? first.stream : block_.ops[*of_chain].stream;
    group.name = first.name;
    for (const VarId input : group.group->inputs()) group.inputs.push_back(source_of(input, ops));
    for (const VarId output : outputs) group.outputs.push_back(compiled_.index_of(output));
    for (const std::size_t op : ops) {
      place_[op] = made_.size();
      group.members.push_back(block_.ops[op]);
      group.members.back().last_uses.clear();
    }
    made_.push_back(std::move(group));
    joined_ = true;
    return true;
  }
  ValueSource source_of(VarId var, const std::vector<std::size_t>& ops) const {
    for (const std::size_t op : ops)
      for (const ValueSource& input : block_.ops[op].inputs)
        if (input.var == var) return input;
    return {};
  }
  bool is_read_outside(VarId var, const std::vector<std::size_t>& ops) const {
    const auto holds = [var](const std::vector<VarId>& vars) { return std::find(vars.begin(), vars.end(), var) != vars.end(); };
    for (std::size_t i = 0; i < block_.ops.size(); ++i)
      if (std::find(ops.begin(), ops.end(), i) == ops.end() && holds(block_.ops[i].op->inputs)) return true;
    for (const Block& other : program_.blocks()) {
      if (holds(other.results)) return true;
      if (other.idx != block_.block->idx && std::any_of(other.ops.begin(), other.ops.end(), [&](const Op& op) { return holds(op.inputs); }))
        return true;
    }
    return false;
  }

  CompiledBlock finish() {
    CompiledBlock made = block_;
    std::vector<std::vector<std::size_t>> last_uses(made_.size());
    std::set<std::size_t> dropped;
    for (const CompiledOp& op : block_.ops) dropped.insert(op.last_uses.begin(), op.last_uses.end());
    std::map<std::size_t, std::size_t> last;  // by var: the last op that reads it
    for (std::size_t i = 0; i < made_.size(); ++i)
      for (const ValueSource& input : made_[i].inputs)
        if (input.up == 0 && input.var != no_var && dropped.contains(input.index)) last[input.index] = i;
    for (const auto& [var, op] : last) last_uses[op].push_back(var);
    for (std::size_t i = 0; i < made_.size(); ++i) made_[i].last_uses = std::move(last_uses[i]);
    for (CompiledBlock::Written& written : made.written) written.last_op = place_[written.last_op];
    made.test = block_.test == 0 ? 0 : place_[block_.test - 1] + 1;
    made.ops = std::move(made_);
    return made;
  }

  const CompiledProgram& compiled_;
  const Program& program_;
  const CompiledBlock& block_;
  const bool has_orders_;
  std::map<Key, std::vector<std::size_t>> open_;
  std::vector<CompiledOp> made_;
  std::vector<std::size_t> place_;  // by op of the block: the op of `made_` that it is, or is in
  bool joined_ = false;
};

}  // namespace

std::optional<CompiledBlock> join_ops(const CompiledProgram& compiled, const CompiledBlock& block) { return Joiner(compiled, block).run(); }

}  // namespace millrace
