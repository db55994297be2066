// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/executor/run_ports.h>
#include <millrace/runtime/executor/run_state.h>
#include <millrace/runtime/loops/concurrent_loops.h>
#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/runtime/loops/operand_binding.h>

namespace millrace {

/// Where the interpreter goes on with a loop of which a backend did the first iterations; without values: at its beginning.
struct LoopStart {
  std::vector<PendingValue> carried;
  std::int64_t iteration = 0;
};

/// Runs the while ops of one run of an executable in the first of their backends that fits and that the options allow.
class LoopRunner : public std::enable_shared_from_this<LoopRunner> {
 public:
  LoopRunner(std::shared_ptr<RunState> state, std::shared_ptr<RunPorts> ports);

  /// True: the loop is done, and its outputs are set in `scope`. False: the interpreter runs it, from `start` on; the trace and the result
  /// say why. UnsupportedError where the options demand a backend that does not fit. `op` and `start` outlive the task.
  static task<bool> run(std::shared_ptr<LoopRunner> loops, const CompiledOp* op, ScopePtr scope, LoopStart* start);
  /// Runs a brief loop on the host without a task, where all that it needs is there. False: `run` decides; nothing has happened.
  bool run_at_once(const CompiledOp& op, const ScopePtr& scope);

  /// An object that is held while a loop runs, in any backend: loops of its group may wait for its end.
  ConcurrentLoops::End end_of(const CompiledOp& op) const { return ConcurrentLoops::End(groups_.stage(op.op)); }

 private:
  class Values;
  /// A run in a backend, and the loops that it takes along.
  struct Prepared {
    LoopBackend* backend = nullptr;
    std::vector<std::unique_ptr<LoopRun>> runs;
    std::vector<const Op*> ops;
  };
  /// A prepared run of a loop that takes too long for `run_at_once`: `run_in` goes on with it.
  struct Begun {
    const Op* op = nullptr;
    const LoopBackend* backend = nullptr;
    std::unique_ptr<LoopRun> run;
  };

  std::unique_ptr<LoopRun> take_begun(const CompiledOp& op, const LoopBackend& backend);
  void add_group(std::size_t number);
  const CompiledOp& compiled(const Op* op) const;
  bool allows(Backend kind) const;
  StreamRef stream_of(const CompiledOp& op, const VarScope& scope, const LoopBackend& backend) const;
  static task<std::unique_ptr<LoopRun>> prepare(std::shared_ptr<LoopRunner> loops, LoopBackend* backend, const CompiledOp* op,
                                                ScopePtr scope, ConcurrentRuns concurrent, std::string* why);
  static task<bool> run_in(std::shared_ptr<LoopRunner> loops, LoopBackend* backend, const CompiledOp* op, ScopePtr scope, LoopStart* start,
                           std::string* why);
  bool passes_slots(const CompiledOp& op);
  static task<void> run_prepared(std::shared_ptr<LoopRunner> loops, Prepared* prepared, int threads, const CompiledOp* op, ScopePtr scope);
  static task<bool> finish(std::shared_ptr<LoopRunner> loops, LoopBackend* backend, std::unique_ptr<LoopRun> run, const CompiledOp* op,
                           ScopePtr scope, LoopStart* start);
  void set_results(Backend backend, const LoopRun& run, std::vector<Value> carried, const CompiledOp& op, VarScope& scope);
  void trace_slots(const LoopRun& run, const std::string& name);
  static task<void> watch(std::shared_ptr<LoopRun> run, Point end);
  void note_interpreted(const CompiledOp& op, const VarScope& scope, const std::string& why);

  std::shared_ptr<RunState> state_;
  std::shared_ptr<RunPorts> ports_;
  ConcurrentLoops groups_;
  Begun begun_;
};

}  // namespace millrace
