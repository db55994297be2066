// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <millrace/runtime/lowering/loop_groups.h>
#include <millrace/runtime/program/program.h>

namespace millrace {

/// The slots of an array as one tensor, by axis: the number of the slot, an axis of the slots, or one of extent 1 that was put in.
struct StackedView {
  static constexpr int iteration = -1;
  static constexpr int one = -2;
  VarId array = no_var;
  std::vector<int> axes;
};

/// The tensors of block 0 that show the slots of an array of fixed size and without an order: outputs of dense layers, through ops that only
/// move axes.
class StackedViews {
 public:
  StackedViews() = default;
  explicit StackedViews(const Program& program);

  /// Null: `var` is none.
  const StackedView* find(VarId var) const;
  /// Whether the slots of `view.array` are what `tensor_array_unstack` along `axis` gives of it.
  static bool shows_slots(const StackedView& view, int axis);
  /// Whether `op` reads nothing but the extents of that input.
  static bool reads_extents(const Program& program, const Op& op, std::size_t input);
  /// Vars of block 0 that are computed from the stacked slots of arrays which loops of `group` write, such as zeros for as many sequences.
  std::set<VarId> behind(const Program& program, const LoopGroup& group) const;

 private:
  void follow(const Program& program, const Op& op);
  std::optional<std::vector<int>> moved(const Program& program, const Op& op, const std::vector<int>& axes) const;

  std::map<VarId, StackedView> views_;
  std::set<VarId> fixed_;  // arrays
};

/// Arrays that the body of the loop, or a block inside it, writes.
std::set<VarId> written_arrays(const Program& program, const Op& loop);

}  // namespace millrace
