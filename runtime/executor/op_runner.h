// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>

#include <millrace/runtime/executor/run_state.h>

namespace millrace {

/// Runs single ops of one run of an executable: kernels, and ops that are tasks themselves.
class OpRunner : public std::enable_shared_from_this<OpRunner> {
 public:
  explicit OpRunner(std::shared_ptr<RunState> state) : state_(std::move(state)) {}

  /// Whether all inputs are there, and ready where the op reads them on the host.
  bool inputs_ready(const CompiledOp& op, VarScope& scope) const;
  /// Whether the op, whose inputs are ready, may have to wait.
  bool may_wait(const CompiledOp& op, VarScope& scope) const;
  /// Whether an op that stands for a group runs as one kernel: its inputs are ready and fit.
  bool runs_as_group(const CompiledOp& op, VarScope& scope) const;
  /// Awaits the inputs. `op` outlives the task.
  static task<void> await_inputs(std::shared_ptr<OpRunner> runner, const CompiledOp* op, ScopePtr scope);

  /// An op with a kernel, whose inputs are ready: sets its outputs in `scope`. Errors keep their type and say which op and iteration.
  void run_kernel(const CompiledOp& op, VarScope& scope) const;
  /// Runs the kernel of op `place` of block 0, one of `CompiledProgram::extent_ops`, where the run has `RunState::extent_values`.
  void run_extent_op(std::size_t place, const CompiledOp& op, VarScope& scope) const;
  /// An op that is a task, whose inputs are ready and which need not wait, run as a function. False: it has none for these inputs, and nothing was set.
  bool run_now(const CompiledOp& op, VarScope& scope) const;
  /// An op that is a task, run as `run_kernel` runs a kernel. The runner and `op` outlive the task.
  task<void> run_task(const CompiledOp* op, ScopePtr scope);
  /// Fails the outputs that are not there.
  void fail_outputs(const CompiledOp& op, VarScope& scope, const std::exception_ptr& error) const;

 private:
  template <class F>
  bool launch(const CompiledOp& op, VarScope& scope, F run) const;
  void set_outputs(const CompiledOp& op, VarScope& scope, std::span<const Value* const> inputs, std::span<Value> outputs) const;
  void trace_store(const CompiledOp& op, std::span<const Value* const> inputs);
  std::string where(const CompiledOp& op, const VarScope& scope) const { return " (" + state_->whose(op, scope) + ")"; }

  std::shared_ptr<RunState> state_;
};

/// Records that a slot is ready once it is: "slots[3] ready".
task<void> trace_ready(std::shared_ptr<RunState> state, Point ready_at, std::string slot, std::int64_t index);

}  // namespace millrace
