// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/lowering/stacked_views.h>
#include <millrace/runtime/program/prepared_op.h>
#include <millrace/runtime/program/value.h>
#include <millrace/runtime/task/task.h>

namespace millrace {

/// The values that a loop finds outside, as the evaluator of the program knows them. One object for one run of one while op; its tasks run
/// one at a time.
class LoopValues {
 public:
  virtual ~LoopValues() = default;
  LoopValues(const LoopValues&) = delete;
  LoopValues& operator=(const LoopValues&) = delete;

  virtual const Program& program() const = 0;
  /// The value of a var that the loop's block sees, as long as this lives; it may still be under way on a device. Null: no op has made it yet.
  virtual const Value* find(VarId var) = 0;
  /// Waits until `find` gives the value.
  virtual task<void> wait(VarId var) = 0;
  /// The op of block 0 that makes `var`; null: none with a kernel.
  virtual const PreparedOp* maker(VarId var) const = 0;
  virtual StreamRef stream(const PreparedOp& op) const = 0;
  /// Null: `var` does not show the slots of an array.
  virtual const StackedView* stacked_view(VarId var) const = 0;
  /// Whether slots of the array come from another rank, or leave for one, while the program runs.
  virtual bool arrives(VarId array) const = 0;
  virtual bool leaves(VarId array) const = 0;

 protected:
  LoopValues() = default;
};

}  // namespace millrace
