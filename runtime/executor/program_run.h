// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/executor/block_walker.h>
#include <millrace/runtime/executor/loop_runner.h>
#include <millrace/runtime/executor/op_runner.h>
#include <millrace/runtime/executor/run_ports.h>
#include <millrace/runtime/executor/run_state.h>

namespace millrace {

/// One run of an executable, of its parts: RunState holds the values, RunPorts feeds inputs and hands out outputs, OpRunner runs single ops,
/// LoopRunner runs loops in their backends, BlockWalker walks blocks and interprets loops. Each part knows those before it only.
class ProgramRun {
 public:
  /// `exchange` may be null.
  ProgramRun(Executable executable, RunOptions options, std::shared_ptr<RunExchange> exchange = nullptr);

  /// Checks the feeds and places them.
  void feed(const Feeds& feeds) { ports_->feed(feeds); }
  /// The whole run, its tasks one at a time on `executor`, which outlives it.
  static task<RunResult> run(std::shared_ptr<ProgramRun> self, Executor* executor);

  /// Frees the values that runs have left for later ones (`ExtentValues`): memory was lacking.
  void forget_extent_values() noexcept { state_->forget_extent_values(); }

 private:
  bool at_once() const;

  std::shared_ptr<RunState> state_;
  std::shared_ptr<RunPorts> ports_;
  std::shared_ptr<BlockWalker> walker_;
};

}  // namespace millrace
