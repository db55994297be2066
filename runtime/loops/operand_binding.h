// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/runtime/loops/loop_values.h>

namespace millrace {

/// The runs beside which a loop runs, and whose slots it may read before they are written.
struct ConcurrentRuns {
  const std::vector<std::unique_ptr<LoopRun>>* runs = nullptr;  ///< null: none
  const std::set<VarId>* behind = nullptr;                      ///< vars that come of slots which they write; null: none
};

/// The operands that `backend`, whose `form` is not null, needs to run its loop once: on the host they must be ready (of slots that arrive, the
/// first one), on a device issued (of an array that is being filled, the first one where the backend says so). The operands of the loop were made before it, and no task waits for the slots that it writes: waiting is
/// safe. `backend` and `values` must outlive this.
class OperandBinding {
 public:
  OperandBinding(LoopBackend& backend, LoopValues& values, ConcurrentRuns concurrent, StreamRef stream);

  /// Nothing: `await_missing` comes first, and then `bind` again. Operands of no iterations: there are none, or a number is beyond 64 bits, or
  /// the loop never ends, or a value is missing; then the interpreter runs the loop, and reports the error, if there is one.
  std::optional<LoopOperands> bind();
  /// Waits for a value, a point or slots that a `bind` without a result lacked. This must outlive the task.
  task<void> await_missing();

 private:
  struct MissingSlots {
    std::size_t input;
    TensorArray array;
    LoopOperands::Slots slots;
    std::int64_t iterations;
  };
  using Missing = std::variant<std::monostate, VarId, Point, MissingSlots>;

  bool collect(LoopOperands& made);
  bool add_input(std::size_t index, std::int64_t iterations, LoopOperands& made);
  bool add_state(std::size_t index, std::int64_t slot, LoopOperands& made);
  const Value* find(VarId var);
  const Value* find_made(VarId var);
  const Value* compute(VarId var);
  bool reached(const Point& point);

  const LoopBackend& backend_;
  const LoopForm& form_;
  LoopValues& values_;
  ConcurrentRuns concurrent_;
  StreamRef stream_;
  bool on_host_;
  std::map<VarId, Value> computed_;  ///< from the extents of concurrent runs
  std::vector<bool> awaited_;        ///< by input: its slots have been waited for
  Missing missing_;
};

/// `OperandBinding` until nothing is missing. `backend` and `values` must outlive the task.
task<LoopOperands> await_operands(LoopBackend* backend, LoopValues* values, ConcurrentRuns concurrent, StreamRef stream);

/// Whether the first values of the loop's counters are there and ready: `carried_behind` needs them. The op is the loop's.
bool has_counters(const LoopForm& form, const Op& op, LoopValues& values);
/// Waits until `has_counters`. The arguments must outlive the task.
task<void> await_counters(const LoopForm* form, const Op* op, LoopValues* values);

/// The values of the loop's carried vars behind `iterations` iterations: counters are computed, states are those in `last`.
std::vector<Value> carried_behind(const LoopForm& form, const Op& op, LoopValues& values, std::vector<SlotValue> last,
                                  std::int64_t iterations);

/// Waits until slots are issued. False when one does not come: the interpreter then reports it, with the iteration.
task<bool> await_slots(std::vector<std::pair<TensorArray, std::int64_t>> slots);

}  // namespace millrace
