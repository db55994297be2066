// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/value.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/task.h>

namespace millrace {

/// The values that a run takes from elsewhere, and gives away, while it goes on: the other parts of a program whose loops run on several ranks
/// (distributed/partition.h). Each call is a task of its own of the run, one at a time. Its errors, and those of what it spawns, are the run's.
class RunExchange {
 public:
  virtual ~RunExchange() = default;
  RunExchange(const RunExchange&) = delete;
  RunExchange& operator=(const RunExchange&) = delete;

  /// Inputs that are not fed, but come: ops that need one wait for it. Outputs that leave do so as soon as they are issued, an array when it
  /// is made; they are not in the run's result.
  virtual bool provides(const std::string& input) const = 0;
  virtual bool takes(const std::string& output) const = 0;
  /// `rest` joins what goes on after the value is there: the slots of an array.
  virtual task<Value> receive(std::string input, Scope* rest) = 0;
  virtual task<void> send(std::string output, Value value, Scope* rest) = 0;

 protected:
  RunExchange() = default;
};

/// As `run` (run_program.h), with inputs that come and outputs that leave.
task<RunResult> run(Executable executable, Feeds feeds, RunOptions options, std::shared_ptr<RunExchange> exchange);

}  // namespace millrace
