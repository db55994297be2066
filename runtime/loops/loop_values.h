// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/loops/loop_backend.h>
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
  /// The value of a var that the loop's block sees, as soon as it is there; it may still be under way on a device.
  virtual task<Value> value(VarId var) = 0;
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

/// The runs beside which a loop runs, and whose slots it may read before they are written.
struct ConcurrentRuns {
  const std::vector<std::unique_ptr<LoopRun>>* runs = nullptr;  ///< null: none
  const std::set<VarId>* behind = nullptr;                      ///< vars that come of slots which they write; null: none
};

/// Awaits the operands that `backend`, whose `form` is not null, needs to run its loop once: on the host until they are ready (of slots that
/// arrive, the first one), on a device until they are issued. The operands of the loop were made before it, and no task waits for the slots that it writes: waiting is
/// safe. The result has no iterations when there are none, when a number is beyond 64 bits, when the loop never ends, and when a value is
/// missing: then the interpreter runs the loop, and reports the error, if there is one. `backend` and `values` must outlive the task.
task<LoopOperands> await_operands(LoopBackend* backend, LoopValues* values, ConcurrentRuns concurrent, StreamRef stream);

/// The values of the loop's carried vars behind `iterations` iterations: counters are computed, states are those in `last`. The op is the
/// loop's; `form` and `values` must outlive the task.
task<std::vector<Value>> carried_behind(const LoopForm* form, const Op* op, LoopValues* values, std::vector<SlotValue> last,
                                        std::int64_t iterations);

/// Waits until slots are issued. False when one does not come: the interpreter then reports it, with the iteration.
task<bool> await_slots(std::vector<std::pair<TensorArray, std::int64_t>> slots);

}  // namespace millrace
