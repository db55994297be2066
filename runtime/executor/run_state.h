// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <millrace/runtime/executor/compiled_program.h>
#include <millrace/runtime/executor/extent_values.h>
#include <millrace/runtime/executor/pending_value.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/executor/var_scope.h>
#include <millrace/runtime/task/scope.h>

namespace millrace {

using ScopePtr = std::shared_ptr<VarScope>;

/// Whether the task ends because a scope around it was cancelled. Called while its exception is handled. Then the waiters for its results are cancelled too, or
/// get the cause from the op around it, and not that another task was cancelled.
bool is_cut_off(const TaskInfo& task);

/// The parts of one run of an executable that all its tasks share: the compiled program, options, the result so far, rows of the trace. Its
/// tasks run one at a time.
class RunState {
 public:
  RunState(Executable executable, RunOptions options);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  const CompiledProgram& compiled() const noexcept { return executable_.compiled(); }
  const Program& program() const noexcept { return compiled().program; }
  const RunOptions& options() const noexcept { return options_; }
  RunResult& result() noexcept { return result_; }
  /// A block as this run walks it: with ops joined, unless a tracer, kept step scopes or a choice of backend ask for each op.
  const CompiledBlock& block(int idx) const {
    const std::optional<CompiledBlock>& joined = compiled().joined[static_cast<std::size_t>(idx)];
    return joins_ && joined ? *joined : compiled().block(idx);
  }
  /// The values of ops of block 0 that earlier runs have left; null: each op runs, because there are none or a tracer looks.
  ExtentValues* extent_values() const noexcept { return extent_values_.get(); }
  /// Lets go of them, and of those that other runs have left. After the run.
  void forget_extent_values() noexcept;
  /// The scope of block 0.
  const ScopePtr& root() const noexcept { return root_; }
  /// Joins the tasks that belong to no op; null before and after the run.
  Scope* whole = nullptr;

  /// The value, or null while it is under way.
  const Value* find(const ValueSource& source, VarScope& scope) const;
  PendingValue pending(const ValueSource& source, const ScopePtr& scope) const;
  /// The value of a var that a block of `scope` sees, of a constant as the program holds it; null while it is under way.
  const Value* find(VarId var, VarScope& scope) const;
  /// Waits until `find` gives the value. The state must outlive the task.
  task<void> wait_for(VarId var, ScopePtr scope) const;

  StreamRef stream(const CompiledOp& op, const VarScope& scope) const;
  /// The device of the run, with streams of the run's own where the place has such.
  Device& device() const noexcept { return *device_; }
  StreamRef host_stream() const { return host_ ? (*host_)->stream(0) : device_->stream(0); }
  /// "op matmul of block 1, iteration 3".
  std::string whose(const CompiledOp& op, const VarScope& scope) const;

  /// The tracks of an op's stream and of a block in the trace; 0 without a trace.
  std::uint64_t track(const CompiledOp& op, const VarScope& scope) const;
  std::uint64_t block_track(int block) const;

  /// A step scope that `RunOptions::keep_step_scopes` may ask for, of an iteration that is one.
  void count_iteration(const ScopePtr& scope);
  /// Takes the outputs; then the run is over.
  RunResult take_result(std::vector<std::pair<std::string, Value>> outputs);

 private:
  void add_tracks();
  std::size_t stream_index(const CompiledOp& op, const VarScope& scope) const;

  Executable executable_;
  CallerDevices::Lease device_;
  std::optional<CallerDevices::Lease> host_;  ///< where the device is none
  RunOptions options_;
  bool joins_;
  std::shared_ptr<VarScope::Count> count_ = std::make_shared<VarScope::Count>();
  ScopePtr root_;
  std::unique_ptr<ExtentValues> extent_values_;
  RunResult result_;
  std::vector<std::uint64_t> block_tracks_;   ///< empty when nobody traces
  std::vector<std::uint64_t> stream_tracks_;  ///< the host, then the ring
};

/// Describes the op that enqueues work, for streams that keep the work for later.
class OpOrigin final : public WorkOrigin {
 public:
  OpOrigin(const RunState& state, const CompiledOp& op, const VarScope& scope) noexcept : state_(state), op_(op), scope_(scope) {}
  std::string describe() const override { return state_.whose(op_, scope_); }

 private:
  const RunState& state_;
  const CompiledOp& op_;
  const VarScope& scope_;
};

}  // namespace millrace
