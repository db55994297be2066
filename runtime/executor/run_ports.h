// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>

#include <millrace/runtime/executor/run_exchange.h>
#include <millrace/runtime/executor/run_state.h>
#include <millrace/runtime/task/executor.h>

namespace millrace {

/// The inputs and outputs of one run of an executable: fed and collected, or exchanged with other ranks while the program runs.
class RunPorts : public std::enable_shared_from_this<RunPorts> {
 public:
  /// `exchange` may be null: then every input is fed, and every output is in the result.
  RunPorts(std::shared_ptr<RunState> state, std::shared_ptr<RunExchange> exchange)
      : state_(std::move(state)), exchange_(std::move(exchange)) {}

  /// Checks the feeds and places them in the root scope. ArgumentError, DTypeError, ShapeError, LoDError.
  void feed(const Feeds& feeds);
  /// Starts the tasks by which values come and leave, as children of the run.
  void start(Executor& executor, Scope& scope);
  /// The result of the run, once its outputs are ready: an error on a stream surfaces here.
  task<RunResult> collect();

  bool exchanges() const noexcept { return exchange_ != nullptr; }
  /// Whether the var is an input that is not fed, but comes while the program runs.
  bool arrives(VarId var) const;
  bool any_arrives(const std::set<VarId>& vars) const;
  /// Whether the var is an output that leaves while the program runs.
  bool leaves(VarId var) const;

 private:
  bool arrives(const std::string& input) const { return exchange_ != nullptr && exchange_->provides(input); }
  void take_input(const Program::Port& port, const Value& value);
  /// Whether a tensor shares its elements with a feed, which the caller fills again for the next run, or with what later runs take over.
  bool is_shared(const Tensor& made) const;
  static task<void> receive(std::shared_ptr<RunPorts> ports, Program::Port port);
  static task<void> send(std::shared_ptr<RunPorts> ports, Program::Port port);

  std::shared_ptr<RunState> state_;
  std::shared_ptr<RunExchange> exchange_;
  std::set<const Allocation*> fed_;  // of tensors that the caller may still write
};

}  // namespace millrace
