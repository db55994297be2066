// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/array/array_writer.h>
#include <millrace/runtime/executor/loop_runner.h>
#include <millrace/runtime/executor/op_runner.h>
#include <millrace/runtime/executor/run_state.h>
#include <millrace/runtime/task/gate.h>
#include <millrace/runtime/task/scope.h>

namespace millrace {

/// Walks the blocks of one run of an executable: starts their ops in order, each iteration of an interpreted loop, each branch. An op whose
/// inputs are there runs where it stands, and so does a branch of such ops; one that has to wait becomes a task, and so do loops and other branches.
class BlockWalker : public std::enable_shared_from_this<BlockWalker> {
 public:
  BlockWalker(std::shared_ptr<RunState> state, std::shared_ptr<OpRunner> ops, std::shared_ptr<LoopRunner> loops)
      : state_(std::move(state)), ops_(std::move(ops)), loops_(std::move(loops)) {}

  /// Runs ops of block 0 in the caller, `task`, up to the first one that needs a task or has to be awaited. True: all of them have run. At most once, before
  /// `run_program`. CancelledError as `TaskInfo::check_goes_on`.
  bool walk_at_once(const TaskInfo& task);
  /// Block 0, or the rest of it, in the root scope; ends when all its tasks have.
  static task<void> run_program(std::shared_ptr<BlockWalker> walker);

 private:
  using GatePtr = std::shared_ptr<Gate>;
  /// The outcome of one run of a block, for its starter.
  struct BlockEnd {
    explicit BlockEnd(std::vector<GatePtr> before = {}) : appends(std::move(before)) {}
    std::size_t next = 0;                             ///< the first op that was not started
    std::optional<std::size_t> tried = std::nullopt;  ///< the op at which `walk_at_once` came to its end
    std::optional<Gate> walked;  ///< of a block with a task of its own: opens when all ops have been started and `results` are known
    bool broke = false;
    bool iteration = false;  ///< it got past the body's test
    std::vector<PendingValue> results;
    /// For each of the block's `appended` arrays, the last op that may append to it; null: none that is under way. A body starts with
    /// the ops that the iteration before left.
    std::vector<GatePtr> appends;
    /// Becomes as new, for the next iteration.
    void begin_again() {
      next = 0;
      tried.reset();
      broke = iteration = false;
      results.clear();
    }
  };
  using EndPtr = std::shared_ptr<BlockEnd>;
  /// Registrations as a writer of arrays, by the last op that may write.
  struct HeldWriters {
    std::vector<std::pair<std::size_t, ArrayWriter>> writers;
    void release_after(std::size_t op);
    void add(HeldWriters more);
  };

  struct Iterations;
  /// Where `walk_iterations` came to: the loop has ended, a condition has to be awaited, an iteration has begun and has to wait, or others have a turn.
  enum class Stop { ended, at_condition, in_iteration, at_turn };

  static task<void> run_block(std::shared_ptr<BlockWalker> walker, const CompiledBlock* block, ScopePtr scope, EndPtr end);
  static task<bool> walk(BlockWalker* walker, const CompiledBlock* block, const ScopePtr* scope, BlockEnd* end, Scope* ops);
  static task<void> run_op(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope, HeldWriters held,
                           std::vector<GatePtr> before, GatePtr done);
  static task<void> do_op(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope);
  static task<void> run_while(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope);
  static task<void> run_iterations(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope, Scope* iterations,
                                   LoopStart* start);
  static task<void> run_branch(std::shared_ptr<BlockWalker> walker, const CompiledOp* op, ScopePtr scope);
  static bool is_there(const PendingValue& condition);
  static task<bool> goes_on(const PendingValue* condition, const std::string* loop);
  static task<void> take_ended(std::deque<Spawned<void>>* under_way, std::size_t most);
  bool walk_ready(const CompiledBlock& block, const ScopePtr& scope, BlockEnd& end, const TaskInfo& task);
  void end_by_break(const CompiledOp& op, const ScopePtr& scope, BlockEnd& end) const;
  Stop walk_iterations(Iterations& loop, int most, const TaskInfo& task);
  bool may_walk_at_once(const CompiledBlock& body) const;
  static void next_step(ScopePtr& step, const ScopePtr& outer, const CompiledBlock& body, std::int64_t iteration);
  bool needs_task(const CompiledOp& op, VarScope& scope, const BlockEnd& end) const;
  bool start_members(const CompiledOp& op, const ScopePtr& scope, BlockEnd& end, Scope& ops, TaskInfo& task);
  bool run_at_once(const CompiledBlock& block, std::size_t place, const ScopePtr& scope, const BlockEnd& end);
  bool walk_branch(const CompiledOp& op, const ScopePtr& scope);
  bool walk_plain(const CompiledBlock& block, const ScopePtr& scope);
  void add_results(const CompiledBlock& block, const ScopePtr& scope, BlockEnd& end) const;
  HeldWriters hold_writers(const CompiledBlock& block, VarScope& scope, TaskInfo& task, const std::string& name) const;
  HeldWriters hold_for(const CompiledOp& op, VarScope& scope, TaskInfo& task, const std::string& name) const;
  void hold_made(HeldWriters& held, const CompiledBlock& block, std::span<const std::size_t> made, VarScope& scope, TaskInfo& task) const;
  void spawn_op(const CompiledOp& op, const ScopePtr& scope, BlockEnd& end, Scope& ops, TaskInfo& task);
  void begin_iteration(const ScopePtr& scope, BlockEnd& end);
  static bool appends_under_way(const CompiledOp& op, const BlockEnd& end);

  std::shared_ptr<RunState> state_;
  std::shared_ptr<OpRunner> ops_;
  std::shared_ptr<LoopRunner> loops_;
  EndPtr begun_;                 // of block 0: what `walk_at_once` came to
  std::vector<ScopePtr> spare_;  // by block: a scope for the next run of a branch that needs no task
};

}  // namespace millrace
