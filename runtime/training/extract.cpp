// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/extract.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <millrace/runtime/program/op_def.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::training {
namespace {

std::vector<int> sub_blocks(const Op& op) {
  std::vector<int> found;
  for (const auto& [name, attribute] : op.attributes)
    if (const auto* block = std::get_if<BlockId>(&attribute); block != nullptr && block->index >= 0) found.push_back(block->index);
  return found;
}

/// The vars that an op of block 0 reads, its blocks included, and the arrays that it may write.
struct Uses {
  std::set<VarId> reads;
  std::set<VarId> arrays;
  bool stores = false;

  Uses(const Program& program, const Op& op) {
    add(program, op);
    if (!stores) arrays.clear();
  }
  void add(const Program& program, const Op& op) {
    for (const VarId input : op.inputs) add(program, input);
    if (program.registry().at(op.type).stores) stores = true;
    for (const int index : sub_blocks(op)) {
      for (const Op& inner : program.block(index).ops) add(program, inner);
      for (const VarId result : program.block(index).results) add(program, result);
    }
  }
  void add(const Program& program, VarId var) {
    if (var == no_var) return;
    reads.insert(var);
    if (program.var(var).type.is_array()) arrays.insert(var);
  }
};

/// Copies a program, or what some of its outputs need. Vars of `fed` are inputs of the copy, by the names there, and not computed.
class Copy {
 public:
  using Fed = std::map<VarId, std::string>;
  Copy(const Program& from, std::optional<std::vector<std::string>> outputs, Fed fed = {})
      : from_(from), made_(from.shared_registry()), fed_(std::move(fed)) {
    if (outputs) {
      find_needed(*outputs);
      return;
    }
    for (std::size_t i = 0; i < from.block(0).ops.size(); ++i) ops_.insert(i);
    for (std::size_t var = 0; var < from.vars().size(); ++var) needed_.insert(static_cast<VarId>(var));
    outputs_ = from.outputs();
  }

  /// `weight(var, value)` adds what stands for a weight.
  template <class F>
  Program run(const F& weight) {
    made_.set_title(from_.title());
    find_blocks();
    for (std::size_t var = 0; var < from_.vars().size(); ++var) add_var(static_cast<VarId>(var), weight);
    for (const auto& [index, to] : blocks_) fill(from_.block(index), to);
    for (const Program::Port& port : outputs_) made_.add_output(port.name, vars_.at(port.var));
    return std::move(made_);
  }

  Program& made() { return made_; }
  /// The ops that the outputs need, by their places in block 0.
  const std::set<std::size_t>& ops() const noexcept { return ops_; }
  VarId copy_of(VarId var) const { return vars_.at(var); }

 private:
  void find_needed(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const auto port = std::find_if(from_.outputs().begin(), from_.outputs().end(), [&](const auto& each) { return each.name == name; });
      if (port == from_.outputs().end()) throw ArgumentError("extract: expected an output of the program, found '" + name + "'");
      outputs_.push_back(*port);
      needed_.insert(port->var);
    }
    const std::vector<Op>& ops = from_.block(0).ops;
    for (std::size_t i = ops.size(); i-- > 0;) {
      const Uses uses(from_, ops[i]);
      const auto wanted = [&](VarId var) { return needed_.contains(var) && !fed_.contains(var); };
      if (!std::any_of(ops[i].outputs.begin(), ops[i].outputs.end(), wanted) &&
          !std::any_of(uses.arrays.begin(), uses.arrays.end(), wanted))
        continue;
      ops_.insert(i);
      needed_.insert(uses.reads.begin(), uses.reads.end());
      needed_.insert(ops[i].outputs.begin(), ops[i].outputs.end());
    }
  }

  void find_blocks() {
    std::set<int> reached{0};
    const auto reach = [&](const Op& op) {
      for (const int index : sub_blocks(op)) reached.insert(index);
    };
    for (const std::size_t i : ops_) reach(from_.block(0).ops[i]);
    for (const Block& block : from_.blocks())  // a block stands behind its parent
      if (block.idx > 0 && reached.contains(block.idx)) std::for_each(block.ops.begin(), block.ops.end(), reach);
    for (const int index : reached) blocks_[index] = index == 0 ? 0 : made_.add_block(blocks_.at(from_.block(index).parent_idx));
  }

  template <class F>
  void add_var(VarId var, const F& weight) {
    const VarDef& def = from_.var(var);
    const auto block = blocks_.find(def.block);
    if (block == blocks_.end() || (def.block == 0 && !needed_.contains(var))) return;
    const auto port = std::find_if(from_.inputs().begin(), from_.inputs().end(), [&](const auto& each) { return each.var == var; });
    VarId to = no_var;
    if (const auto fed = fed_.find(var); fed != fed_.end())
      to = made_.add_input(fed->second, def.type);
    else if (port != from_.inputs().end())
      to = made_.add_input(port->name, def.type, port->extents);
    else if (const Tensor* value = from_.parameter(var))
      to = weight(def, *value);
    else
      to = made_.add_var(def.name, def.type, block->second);
    made_.rename(to, def.name);
    vars_[var] = to;
  }

  void fill(const Block& block, int to) {
    for (const VarId param : block.params) made_.block(to).params.push_back(vars_.at(param));
    for (std::size_t i = 0; i < block.ops.size(); ++i)
      if (block.idx != 0 || ops_.contains(i)) made_.append_raw(to, mapped(block.ops[i]));
    for (const VarId result : block.results) made_.block(to).results.push_back(vars_.at(result));
  }

  Op mapped(Op op) const {
    for (VarId& var : op.inputs) var = var == no_var ? no_var : vars_.at(var);
    for (VarId& var : op.outputs) var = vars_.at(var);
    Attributes attributes;
    for (const auto& [name, attribute] : op.attributes) {
      const auto* block = std::get_if<BlockId>(&attribute);
      attributes.set(name, block != nullptr && block->index >= 0 ? Attribute(BlockId{blocks_.at(block->index)}) : attribute);
    }
    op.attributes = attributes;
    return op;
  }

  const Program& from_;
  Program made_;
  Fed fed_;
  std::vector<Program::Port> outputs_;
  std::set<std::size_t> ops_;  // of block 0
  std::set<VarId> needed_;     // of block 0
  std::map<int, int> blocks_;
  std::map<VarId, VarId> vars_;
};

void check_weight(const std::string& name, const Tensor& wanted, const Tensor& found) {
  const std::string text = "weight '" + name + "': expected " + wanted.to_string() + ", found " + found.to_string();
  if (wanted.dtype() != found.dtype()) throw DTypeError(text);
  if (wanted.dims() != found.dims()) throw ShapeError(text);
}

}  // namespace

Tensors weights_of(const Program& program) {
  Tensors weights;
  for (const auto& [var, value] : program.parameters()) weights.emplace(program.var(var).name, value);
  return weights;
}

std::string fed_name(const std::string& weight) { return "weight/" + weight; }

Program with_fed_weights(const Program& program) {
  Copy copy(program, std::nullopt);
  return copy.run([&](const VarDef& def, const Tensor&) { return copy.made().add_input(fed_name(def.name), def.type); });
}

Halves split(const Program& program, const std::vector<std::string>& first, const std::vector<std::string>& second) {
  const auto keep = [](Copy& copy) {
    return [&copy](const VarDef& def, const Tensor& value) { return copy.made().add_parameter(def.name, value); };
  };
  Copy front(program, first);
  const Copy rest(program, second);
  std::set<VarId> made;  // by the ops of the first half
  const std::vector<Op>& ops = program.block(0).ops;
  for (const std::size_t i : front.ops())
    for (const VarId output : ops[i].outputs)
      if (program.constant(output) == nullptr) made.insert(output);
  Copy::Fed fed;
  const auto hand = [&](VarId var) {
    if (made.contains(var)) fed.emplace(var, "handed/" + program.var(var).name);
  };
  for (const std::size_t i : rest.ops()) {
    if (front.ops().contains(i)) continue;
    const Uses uses(program, ops[i]);
    std::for_each(uses.reads.begin(), uses.reads.end(), hand);
  }
  for (const Program::Port& port : program.outputs())
    if (std::find(second.begin(), second.end(), port.name) != second.end()) hand(port.var);
  Halves halves{front.run(keep(front)), Program(program.shared_registry()), {}};
  for (const auto& [var, name] : fed) {
    halves.first.add_output(name, front.copy_of(var));
    halves.handed.push_back(name);
  }
  Copy back(program, second, std::move(fed));
  halves.second = back.run(keep(back));
  return halves;
}

Program extract(const Program& program, const std::vector<std::string>& outputs, const Tensors& weights) {
  for (const auto& [name, value] : weights) {
    const Tensor* there = program.parameter(program.find_var(name));
    if (there == nullptr) throw ArgumentError("extract: expected a weight of the program, found '" + name + "'");
    check_weight(name, *there, value);
  }
  Copy copy(program, outputs);
  return copy.run([&](const VarDef& def, const Tensor& value) {
    const auto given = weights.find(def.name);
    return copy.made().add_parameter(def.name, (given == weights.end() ? value : given->second).copy_to(CpuPlace{}));
  });
}

}  // namespace millrace::training
