// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/skip_repacking.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace millrace {
namespace {

/// Replaces vars by others that hold the same.
class Renamer {
 public:
  explicit Renamer(Program& program) : program_(program) {}

  void rename(VarId from, VarId to) { names_[from] = to; }
  VarId at(VarId var) const {
    const auto found = names_.find(var);
    return found == names_.end() ? var : found->second;
  }
  void apply(Op& op) const {
    for (VarId& input : op.inputs) input = at(input);
  }
  /// In all blocks.
  void apply() const {
    for (std::size_t i = 0; i < program_.blocks().size(); ++i) {
      Block& block = program_.block(static_cast<int>(i));
      for (Op& op : block.ops) apply(op);
      for (VarId& result : block.results) result = at(result);
    }
  }

 private:
  Program& program_;
  std::map<VarId, VarId> names_;
};

bool is_output(const Program& program, VarId var) {
  return std::any_of(program.outputs().begin(), program.outputs().end(), [var](const auto& port) { return port.var == var; });
}

/// How rows became steps. Rows whose only level is the one that was unpacked: their LoD is all that the order depends on.
struct Steps {
  std::int64_t level = 0;
  bool sorted = false;
  bool reversed = false;
  std::set<VarId> arrays;  ///< with a slot for each step of the order
  bool operator==(const Steps& other) const { return level == other.level && sorted == other.sorted && reversed == other.reversed; }
};

std::optional<Steps> steps_of(const Program& program, const Op& unpack) {
  const std::int64_t level = unpack.attributes.get_or<std::int64_t>("level", 0);
  if (program.var(unpack.inputs[0]).type.lod_depth != level + 1) return std::nullopt;
  return Steps{level, unpack.attributes.get_or("sort_by_length", true), unpack.attributes.get_or("reverse", false), {}};
}

/// Reads a block in order, following what each var is.
void skip_in(const Program& program, Block& block, Renamer& same, std::set<VarId>& skipped) {
  std::map<VarId, Steps> orders;                    // by order
  std::map<VarId, VarId> sizes;                     // of which array
  std::map<VarId, std::pair<VarId, VarId>> packed;  // rows → array, order
  for (Op& op : block.ops) {
    same.apply(op);
    if (op.type == "unpack") {
      std::optional<Steps> steps = steps_of(program, op);
      if (!steps) continue;
      const auto from = packed.find(op.inputs[0]);
      if (from != packed.end() && orders.at(from->second.second) == *steps && !is_output(program, op.outputs[0]) &&
          !is_output(program, op.outputs[1])) {
        skipped.insert({op.inputs[0], op.outputs[0]});
        same.rename(op.outputs[0], from->second.first);
        same.rename(op.outputs[1], from->second.second);
        continue;
      }
      steps->arrays.insert(op.outputs[0]);
      orders[op.outputs[1]] = std::move(*steps);
    } else if (op.type == "tensor_array_size") {
      sizes[op.outputs[0]] = op.inputs[0];
    } else if (op.type == "tensor_array" && op.inputs.size() == 2 && orders.contains(op.inputs[1])) {
      const auto size = sizes.find(op.inputs[0]);
      Steps& steps = orders.at(op.inputs[1]);
      const bool open = op.attributes.has("window") || op.attributes.get_or("growable", false);
      if (!open && size != sizes.end() && steps.arrays.contains(size->second)) steps.arrays.insert(op.outputs[0]);
    } else if (op.type == "pack" && orders.contains(op.inputs[1])) {
      const Steps& steps = orders.at(op.inputs[1]);
      if (steps.arrays.contains(op.inputs[0]) && op.attributes.get_or<std::int64_t>("level", 0) == steps.level)
        packed[op.outputs[0]] = {op.inputs[0], op.inputs[1]};
    }
  }
}

/// Takes out those ops, known by what they made, whose outputs nobody reads.
void drop_unread(Program& program, const char* type, const std::set<VarId>& made) {
  std::set<VarId> read;
  for (const Program::Port& port : program.outputs()) read.insert(port.var);
  for (const Block& block : program.blocks()) {
    read.insert(block.results.begin(), block.results.end());
    for (const Op& op : block.ops) read.insert(op.inputs.begin(), op.inputs.end());
  }
  const auto unread = [&](const Op& op) {
    return op.type == type && made.contains(op.outputs[0]) &&
           std::none_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) { return read.contains(output); });
  };
  for (std::size_t i = 0; i < program.blocks().size(); ++i) std::erase_if(program.block(static_cast<int>(i)).ops, unread);
}

}  // namespace

void skip_repacking(Program& program) {
  Renamer same(program);
  std::set<VarId> skipped;
  for (std::size_t i = 0; i < program.blocks().size(); ++i) skip_in(program, program.block(static_cast<int>(i)), same, skipped);
  if (skipped.empty()) return;
  same.apply();
  for (const char* type : {"unpack", "pack"}) drop_unread(program, type, skipped);
}

}  // namespace millrace
