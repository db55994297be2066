// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include <millrace/runtime/lowering/loop_form.h>
#include <millrace/runtime/program/program.h>

namespace millrace::lowering {

/// A loop of block 0 through all slots of dense inputs that were unstacked, with one state, of which the program sees one output, stacked, and the state
/// behind the last iteration. An op may stand in its place.
struct DenseLoop {
  std::vector<VarId>
      inputs;               ///< tensors whose slots along axis 0 are those of the form's inputs; all of them have as many, of as many rows
  VarId counted = no_var;   ///< the array whose slots the loop counts
  VarId outputs = no_var;   ///< the array of the outputs
  std::size_t output = 0;   ///< its place among the outputs of the step
  std::vector<VarId> next;  ///< vars of the step that are the state behind an iteration
  VarId states = no_var;    ///< the array of the states
  VarId boot = no_var;      ///< the state before the first iteration
  int body = 0;             ///< the block of the loop
  LoopForm form;
};

/// Finds such loops. Takes out the arrays and counts around a loop whose place an op has taken.
class DenseLoops {
 public:
  explicit DenseLoops(Program& program);

  /// A cheap look at the body, since a loop form takes time: whether `op` is a small loop that has an op of type `part`, and no product or block.
  static bool is_small(const Program& program, const Op& op, std::string_view part);
  /// Whether block 0 has such a loop.
  static bool has_small(const Program& program, std::string_view part);

  std::optional<DenseLoop> find(const Op& op) const;
  /// The op of block 0 that makes `var`; null: none does.
  const Op* maker(VarId var) const;
  /// Empties the body of a loop whose place an op has taken.
  void empty(const DenseLoop& loop);
  /// Puts `ops` into block 0, without the arrays of the loops that were emptied and the counts that were made for them alone.
  void finish(std::vector<Op> ops);

 private:
  bool unstacks(DenseLoop& loop, const LoopForm::StepInput& input) const;
  bool is_as_long(VarId x, VarId like) const;
  bool has_size(const Op& loop, VarId array, VarId steps) const;
  bool is_read_as_expected(const DenseLoop& loop) const;

  Program& program_;
  const std::map<VarId, int> reads_;
  std::map<VarId, const Op*> makers_;
  std::set<VarId> arrays_;  ///< of loops that are no more
};

}  // namespace millrace::lowering
