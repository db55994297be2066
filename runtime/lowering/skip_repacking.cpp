// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/skip_repacking.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <millrace/runtime/lowering/internal/renamer.h>
#include <millrace/runtime/lowering/stacked_views.h>

namespace millrace {
namespace {

/// The way in which rows became steps. Rows whose only level is the one that was unpacked: their LoD is all that the order depends on.
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

/// The vars that are known to have the same LoD, of all levels: each has a var that stands for it.
class SameLods {
 public:
  VarId of(VarId var) const {
    const auto found = of_.find(var);
    return found == of_.end() ? var : found->second;
  }
  void set(VarId var, VarId like) { of_[var] = of(like); }

 private:
  std::map<VarId, VarId> of_;
};

/// Reads a block in order, following what each var is.
void skip_in(const Program& program, Block& block, bool both_ways, Renamer& same, std::set<VarId>& skipped) {
  std::map<VarId, Steps> orders;                    // by order
  std::map<VarId, VarId> sizes;                     // of which array
  std::map<VarId, std::pair<VarId, VarId>> packed;  // rows → array, order
  std::map<VarId, VarId> plain;                     // packed rows whose LoD was taken away → those rows
  SameLods lods;                                    // of rows, and of the rows that orders are of
  for (Op& op : block.ops) {
    same.apply(op);
    if (op.type == "unpack") {
      std::optional<Steps> steps = steps_of(program, op);
      if (!steps) continue;
      lods.set(op.outputs[1], op.inputs[0]);
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
      if (!steps.arrays.contains(op.inputs[0]) || op.attributes.get_or<std::int64_t>("level", 0) != steps.level) continue;
      packed[op.outputs[0]] = {op.inputs[0], op.inputs[1]};
      if (program.var(op.outputs[0]).type.lod_depth == steps.level + 1) lods.set(op.outputs[0], op.inputs[1]);
    } else if (op.type == "drop_lod" && packed.contains(op.inputs[0])) {
      plain[op.outputs[0]] = op.inputs[0];
    } else if (op.type == "same_steps") {
      lods.set(op.outputs[0], op.inputs[0]);
      if (!both_ways || lods.of(op.inputs[0]) != lods.of(op.inputs[1])) continue;
      skipped.insert(op.outputs[0]);
      same.rename(op.outputs[0], op.inputs[0]);
    } else if (op.type == "lod_reset" && op.inputs.size() == 3 && op.inputs[2] != no_var) {
      lods.set(op.outputs[0], op.inputs[2]);
      // A gradient takes the LoD of its var, which it had before.
      const auto from = plain.find(op.inputs[0]);
      if (!both_ways || from == plain.end() || lods.of(from->second) != lods.of(op.inputs[2])) continue;
      skipped.insert({op.outputs[0], op.inputs[0], from->second});
      same.rename(op.outputs[0], from->second);
    }
  }
}

/// Skips stacks of a dense layer that the next one unstacks, in block 0. The stack stays, as it costs nothing and checks that all slots are alike.
void skip_restacking(const Program& program, Block& block, Renamer& same, std::set<VarId>& skipped) {
  const StackedViews views(program);
  for (const Op& op : block.ops) {
    if (op.type != "tensor_array_unstack" || is_output(program, op.outputs[0])) continue;
    const StackedView* view = views.find(op.inputs[0]);
    if (view == nullptr || !StackedViews::shows_slots(*view, static_cast<int>(op.attributes.get_or("axis", std::int64_t{0})))) continue;
    skipped.insert(op.outputs[0]);
    same.rename(op.outputs[0], view->array);
  }
}

/// `op` makes an array with as many slots as another one, of as many rows as the slots of that: with its extents too, which count only
/// where there are no slots at all, it need not wait for them.
void take_extents(const Program& program, const StackedViews& views, const std::map<VarId, const Op*>& makers, Op& op) {
  if (op.type != "tensor_array" || op.inputs.size() < 3 || op.inputs[0] == no_var || op.inputs[2] == no_var) return;
  const auto size = makers.find(op.inputs[0]), extents = makers.find(op.inputs[2]);
  if (size == makers.end() || extents == makers.end()) return;
  if (size->second->type != "tensor_array_size" || extents->second->type != "shape") return;
  const VarId array = size->second->inputs[0];
  const StackedView* view = views.find(extents->second->inputs[0]);
  const auto like = makers.find(array);
  if (view == nullptr || view->array != array || like == makers.end() || like->second->inputs.size() < 3) return;
  const std::int64_t begin = extents->second->attributes.get_or("start", std::int64_t{0});
  const std::int64_t end = extents->second->attributes.get_or("end", static_cast<std::int64_t>(view->axes.size()));
  if (begin < 0 || end != begin + 1 || std::cmp_greater(end, view->axes.size()) || view->axes[static_cast<std::size_t>(begin)] != 0) return;
  const VarId told = like->second->inputs[2];
  const DDim& slot = *program.var(array).type.shape;
  if (told != no_var && program.var(told).type.shape == DDim{1} && slot.rank() > 0 && slot[0] == DDim::unknown) op.inputs[2] = told;
}

void take_extents(const Program& program, Block& block) {
  const StackedViews views(program);
  std::map<VarId, const Op*> makers;
  for (Op& op : block.ops) {
    take_extents(program, views, makers, op);
    for (const VarId output : op.outputs) makers[output] = &op;
  }
}

/// Takes out those ops, known by their outputs, whose outputs no op reads.
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

void skip_repacking(Program& program, bool both_ways) {
  Renamer same(program);
  std::set<VarId> skipped;
  for (std::size_t i = 0; i < program.blocks().size(); ++i) skip_in(program, program.block(static_cast<int>(i)), both_ways, same, skipped);
  skip_restacking(program, program.block(0), same, skipped);
  if (skipped.empty()) return;
  same.apply();
  take_extents(program, program.block(0));
  for (const char* type : {"unpack", "same_steps", "lod_reset", "drop_lod", "pack", "tensor_array_unstack"})
    drop_unread(program, type, skipped);
}

}  // namespace millrace
