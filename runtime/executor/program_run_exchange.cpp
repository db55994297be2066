// SPDX-License-Identifier: Apache-2.0
// How values come from other runs, and leave for them, while a program runs.
#include <millrace/runtime/executor/program_run.h>

#include <algorithm>

#include <fmt/format.h>

#include <millrace/runtime/executor/run_exchange.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/this_task.h>

namespace millrace {

bool ProgramRun::arrives(const std::string& input) const { return exchange_ != nullptr && exchange_->provides(input); }

bool ProgramRun::any_arrives(const std::set<VarId>& inputs) const {
  const auto& all = executable_.program().inputs();
  return std::any_of(all.begin(), all.end(), [&](const Program::Port& port) { return inputs.contains(port.var) && arrives(port.name); });
}

bool ProgramRun::arrives_slot_by_slot(VarId array) const {
  const auto& inputs = executable_.program().inputs();
  return exchange_ != nullptr &&
         std::any_of(inputs.begin(), inputs.end(), [&](const Program::Port& port) { return port.var == array && arrives(port.name); });
}

bool ProgramRun::leaves_slot_by_slot(VarId array) const {
  const auto& outputs = executable_.program().outputs();
  return exchange_ != nullptr && std::any_of(outputs.begin(), outputs.end(),
                                             [&](const Program::Port& port) { return port.var == array && exchange_->takes(port.name); });
}

void ProgramRun::start_exchange(Executor& executor, Scope& scope) {
  const Program& program = executable_.program();
  for (const Program::Port& port : program.inputs())
    if (arrives(port.name) && !root_->has(executable_.index_of(port.var)))
      scope.spawn_on(executor, receive_input(shared_from_this(), port), fmt::format("'{}' to arrive", port.name));
  for (const Program::Port& port : program.outputs())
    if (exchange_->takes(port.name))
      scope.spawn_on(executor, send_output(shared_from_this(), port), fmt::format("'{}' to leave", port.name));
}

task<void> ProgramRun::receive_input(std::shared_ptr<ProgramRun> run, Program::Port port) {
  TaskInfo& me = co_await this_task::info();
  Scope rest(me);
  std::exception_ptr failed;
  try {
    const Value value = co_await run->exchange_->receive(port.name, &rest);
    run->take_input(port, value);
  } catch (...) {
    failed = std::current_exception();
    // Who was cancelled along with the run is not to blame the value.
    if (!me.cancelled()) run->root_->fail(run->executable_.index_of(port.var), run->var_name(port.var), failed);
  }
  if (failed != nullptr) rest.fail(failed);
  co_await rest.join();
}

task<void> ProgramRun::send_output(std::shared_ptr<ProgramRun> run, Program::Port port) {
  TaskInfo& me = co_await this_task::info();
  Value value = co_await value_of(run, port.var, run->root_);
  Scope rest(me);
  std::exception_ptr failed;
  try {
    co_await run->exchange_->send(port.name, std::move(value), &rest);
  } catch (...) {
    failed = std::current_exception();
  }
  if (failed != nullptr) rest.fail(failed);
  co_await rest.join();
}

}  // namespace millrace
