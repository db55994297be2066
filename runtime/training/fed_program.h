// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <millrace/runtime/executor/run_exchange.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/training/weights.h>

namespace millrace::training {

/// A compiled program that takes its weights as inputs (`with_fed_weights`), so that they may change from run to run. Runs take place on the calling
/// thread, which must not be one of a runtime (BlockingError). Not thread-safe.
class FedProgram {
 public:
  /// `fed` is what `with_fed_weights` gave, perhaps with more ops and outputs. `device` null: a CPU device of its own with one thread.
  explicit FedProgram(Program fed, std::shared_ptr<Device> device = nullptr);

  /// One run; `feeds` are the other inputs. `exchange` takes outputs while the run goes on (run_exchange.h); null: the result has all outputs.
  RunResult run(const Tensors& weights, Feeds feeds, const RunOptions& options = {}, std::shared_ptr<RunExchange> exchange = nullptr);
  const Program& program() const noexcept { return executable_.program(); }

 private:
  Executable executable_;
};

}  // namespace millrace::training
