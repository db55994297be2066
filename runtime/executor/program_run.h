// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/runtime/array/array_writer.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/loops/cuda_graph/captured_loop.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/strand.h>

namespace millrace {

class RunExchange;
class Wavefront;

/// One run of an executable: what its tasks share. Internal to the executor; the tasks hold it by shared pointer.
class DeviceLstm;

class ProgramRun : public std::enable_shared_from_this<ProgramRun> {
 public:
  /// `exchange` may be null.
  ProgramRun(Executable executable, RunOptions options, std::shared_ptr<RunExchange> exchange = nullptr);

  /// Feeds → scope of block 0, checked and placed.
  void feed(const Feeds& feeds);
  /// The whole run, on `executor`.
  task<void> run_on(Executor& executor);
  task<RunResult> collect();

 private:
  /// An input that is not fed, but comes while the program runs.
  bool arrives(const std::string& input) const;
  void take_input(const Program::Port& port, const Value& value);
  /// The tasks by which values come and leave, as children of the run.
  void start_exchange(Executor& executor, Scope& scope);
  static task<void> receive_input(std::shared_ptr<ProgramRun> run, Program::Port port);
  static task<void> send_output(std::shared_ptr<ProgramRun> run, Program::Port port);

  using CompiledBlock = Executable::CompiledBlock;
  using CompiledOp = Executable::CompiledOp;
  using Source = Executable::Source;
  using ScopePtr = std::shared_ptr<VarScope>;

  /// A value, or where it will be.
  struct PendingValue {
    Value value;
    ScopePtr scope;  ///< null when `value` is there
    std::size_t index = 0;
    const std::string* name = nullptr;  ///< of the var, as long as the program lives
  };
  using GatePtr = std::shared_ptr<Gate>;
  /// How one run of a block went, for whoever started it.
  struct BlockEnd {
    explicit BlockEnd(std::vector<GatePtr> before = {}) : appends(std::move(before)) {}
    std::size_t next = 0;        ///< the first op that was not started
    std::optional<Gate> walked;  ///< of a block with a task of its own: opens when all ops have been started and `results` are known
    bool broke = false;
    bool iteration = false;  ///< it got past the body's test
    std::vector<PendingValue> results;
    /// For each of the block's `appended` arrays, the last op that may append to it; null: none that is under way. A body starts with
    /// what the iteration before left.
    std::vector<GatePtr> appends;
    /// As new, for the next iteration.
    void begin_again() {
      next = 0;
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

  /// A loop of a group but the first: it waits until the first says whether it took it along.
  struct Companion {
    Companion(const CompiledOp* loop, const std::set<VarId>& of_group) : op(loop), behind(of_group), gate("the loop that it runs beside") {}
    const CompiledOp* op;
    const std::set<VarId>& behind;  ///< what comes of the stacked slots of the group
    Gate gate;
    Gate ended{"the end of a loop that may have written what this one reads"};
    bool late = false;                  ///< it, or one before it, needs what another rank may make of what the first loop writes
    std::shared_ptr<Companion> before;  ///< the one before it in the group, but for the first loop
    std::unique_ptr<FusedRun> done;     ///< its iterations are, or as many as there could be
  };
  struct Companions;
  struct LoopEnd;
  /// What is known of loops that a loop is to run beside: of what they will write, where and of which extents.
  struct Beside {
    const std::vector<std::unique_ptr<FusedRun>>* runs = nullptr;
    const std::set<VarId>* behind = nullptr;  ///< null: nothing comes of what they write
    std::optional<DDim> extents(const StackedView& view) const;
  };

  /// Which slots a loop works on.
  struct FusedSlots {
    std::vector<FusedOperands::Slots> read, written;
    std::vector<std::int64_t> states;
    std::int64_t iterations = 0;
  };

  static task<void> run_block(std::shared_ptr<ProgramRun> run, const CompiledBlock* block, ScopePtr scope, EndPtr end);
  static task<bool> walk(ProgramRun* run, const CompiledBlock* block, const ScopePtr* scope, BlockEnd* end, Scope* ops);
  static task<void> run_op(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, HeldWriters held,
                           std::vector<GatePtr> before, GatePtr done);
  static task<void> do_op(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope);
  static task<void> run_while(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope);
  bool one_piece() const;
  std::shared_ptr<const FusedLoop> fused_form(const CompiledOp& op, const VarScope& scope);
  /// Where a loop goes on iteration by iteration, when it came no further in one piece.
  struct LoopStart {
    std::vector<PendingValue> carried;
    std::int64_t iteration = 0;
  };
  static task<bool> run_fused(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, LoopStart* start);
  static task<std::unique_ptr<FusedRun>> prepare_fused(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope,
                                                       Beside beside);
  static task<void> iteration_fused(std::shared_ptr<ProgramRun> run, FusedRun* one, Wavefront* several, StreamRef stream);
  static task<void> turned(StreamRef stream);
  bool passes_slots(const CompiledOp& op, const VarScope& scope);
  static task<void> pass_slots(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope,
                               const std::vector<std::unique_ptr<FusedRun>>* runs, Wavefront* several);
  static task<bool> bind_next(FusedRun* fused, std::int64_t end, StreamRef stream);
  static task<bool> finish_fused(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, std::unique_ptr<FusedRun> fused,
                                 LoopStart* start);
  static task<int> team_size(StreamRef stream);
  /// What of its slots a loop in one piece awaits: of a loop on the host, those that come from another rank, and of these the first iteration's; of one on
  /// a device, those of all iterations.
  enum class Slots : std::uint8_t { on_host, all_on_device };
  static task<FusedOperands> fused_operands(std::shared_ptr<ProgramRun> run, const LoopForm* form, const CompiledOp* op, ScopePtr scope,
                                            Beside beside, Slots slots);
  static task<bool> end_loop(std::shared_ptr<ProgramRun> run, const LoopForm* form, const CompiledOp* op, ScopePtr scope,
                             std::vector<SlotValue> last, std::int64_t turned, std::int64_t iterations, LoopStart* start);
  static task<void> finish_loop(std::shared_ptr<ProgramRun> run, const LoopForm* form, const CompiledOp* op, ScopePtr scope,
                                std::vector<SlotValue> last, std::int64_t iterations);
  static task<std::vector<Value>> carried_behind(std::shared_ptr<ProgramRun> run, const LoopForm* form, const CompiledOp* op,
                                                 ScopePtr scope, std::vector<SlotValue> last, std::int64_t iterations);
  std::shared_ptr<CapturedLoop> captured_loop(const CompiledOp& op, const VarScope& scope);
  static task<bool> run_captured(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope);
  static task<void> watch_captured(std::shared_ptr<CapturedLoop::Run> loop);
  void note_iteration_by_iteration(const CompiledOp& op, const VarScope& scope);
  static task<bool> run_fused_on_device(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, LoopStart* start);
  static task<std::optional<std::vector<SlotValue>>> pass_slots_on_device(std::shared_ptr<ProgramRun> run, const CompiledOp* op,
                                                                          const DeviceLstm* loop, FusedOperands operands, StreamRef stream,
                                                                          std::int64_t* iterations, std::string* why);
  static task<bool> slots_there(std::vector<std::pair<TensorArray, std::int64_t>> slots);
  static task<Value> value_beside(std::shared_ptr<ProgramRun> run, VarId var, ScopePtr scope, Beside beside);
  bool any_arrives(const std::set<VarId>& inputs) const;
  bool arrives_slot_by_slot(VarId array) const;
  bool leaves_slot_by_slot(VarId array) const;
  static task<void> all_slots(TensorArray array, FusedOperands::Slots slots, std::int64_t iterations);
  static task<std::optional<FusedSlots>> fused_slots(std::shared_ptr<ProgramRun> run, const LoopForm* form, ScopePtr scope, Beside beside);
  static task<Value> value_of(std::shared_ptr<ProgramRun> run, VarId var, ScopePtr scope);
  static task<std::int64_t> integer_of(std::shared_ptr<ProgramRun> run, VarId var, ScopePtr scope);
  static task<void> run_iterations(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope, Scope* iterations,
                                   LoopStart* start);
  bool may_walk_at_once(const CompiledBlock& body) const;
  static void next_step(ScopePtr& step, const ScopePtr& outer, const CompiledBlock& body, std::int64_t iteration);
  static task<bool> goes_on(const PendingValue* condition, const std::string* loop);
  static task<void> take_ended(std::deque<Spawned<void>>* under_way, std::size_t most);
  bool needs_task(const CompiledOp& op, VarScope& scope, const BlockEnd& end) const;
  void add_results(const CompiledBlock& block, const ScopePtr& scope, BlockEnd& end) const;
  static task<void> run_branch(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope);
  static task<void> run_task_op(ProgramRun* run, const CompiledOp* op, ScopePtr scope);
  static task<void> await_inputs(std::shared_ptr<ProgramRun> run, const CompiledOp* op, ScopePtr scope);
  static task<bool> truth(PendingValue condition, std::string what);
  static bool is_known(const Value& condition);
  static bool known_truth(const Value& condition, std::string_view what);
  static task<void> forward(PendingValue from, ScopePtr to, std::size_t index);

  class Origin;
  bool inputs_ready(const CompiledOp& op, VarScope& scope) const;
  bool may_wait(const CompiledOp& op, VarScope& scope) const;
  void run_kernel(const CompiledOp& op, VarScope& scope);
  void finish_outputs(const CompiledOp& op, VarScope& scope, std::span<const Value* const> inputs, std::span<Value> outputs) const;
  std::size_t stream_index(const CompiledOp& op, const VarScope& scope) const;
  StreamRef stream(const CompiledOp& op, const VarScope& scope) const;
  std::uint64_t track(const CompiledOp& op, const VarScope& scope) const;
  void add_tracks();
  void trace_store(const CompiledOp& op, std::span<const Value* const> inputs);
  static task<void> trace_slots(std::shared_ptr<ProgramRun> run, TensorArray array, std::int64_t first, std::int64_t iterations);
  static task<void> trace_ready(std::shared_ptr<ProgramRun> run, Point ready_at, std::string slot, std::int64_t index);
  const Value* find(const Source& source, VarScope& scope) const;
  PendingValue pending(const Source& source, const ScopePtr& scope) const;
  static void set_or_link(PendingValue from, VarScope& to, std::size_t index);
  void deliver(PendingValue from, const ScopePtr& to, std::size_t index, Scope& tasks);
  HeldWriters hold_writers(const CompiledBlock& block, VarScope& scope, TaskInfo& task, const std::string& name) const;
  HeldWriters hold_for(const CompiledOp& op, VarScope& scope, TaskInfo& task, const std::string& name) const;
  void hold_made(HeldWriters& held, const CompiledBlock& block, std::span<const std::size_t> made, VarScope& scope, TaskInfo& task) const;
  void spawn_op(const CompiledOp& op, const ScopePtr& scope, BlockEnd& end, Scope& ops, TaskInfo& task);
  void begin_iteration(const ScopePtr& scope, BlockEnd& end);
  static bool appends_under_way(const CompiledOp& op, const BlockEnd& end);
  void fail_outputs(const CompiledOp& op, VarScope& scope, const std::exception_ptr& error) const;
  std::string where(const CompiledOp& op, const VarScope& scope) const;
  std::string whose(const CompiledOp& op, const VarScope& scope) const;
  std::string name_of(const CompiledOp& op) const;
  const std::string& var_name(VarId var) const { return executable_.program().var(var).name; }

  Executable executable_;
  RunOptions options_;
  std::shared_ptr<RunExchange> exchange_;
  std::map<const CompiledOp*, std::shared_ptr<Companion>> companions_;
  std::map<const CompiledOp*, std::vector<std::shared_ptr<Companion>>> led_by_;  ///< by the first loop of a group
  std::shared_ptr<VarScope::Count> count_ = std::make_shared<VarScope::Count>();
  ScopePtr root_;
  RunResult result_;
  std::map<const CompiledOp*, std::string> why_;  ///< a loop runs iteration by iteration now
  std::vector<std::uint64_t> loop_tracks_;        ///< by block; empty when nobody traces
  std::vector<std::uint64_t> stream_tracks_;      ///< the host, then the ring
  Scope* whole_ = nullptr;                        ///< while the run lasts
};

}  // namespace millrace
