// SPDX-License-Identifier: Apache-2.0
#include "whole_run.h"

#include <fmt/format.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

namespace millrace::app {

Outcome run_program(const Model& model, const std::map<std::string, LoDTensor>& feeds, std::shared_ptr<Device> device, Tracer* tracer) {
  Feeds values(feeds.begin(), feeds.end());
  for (const Program::Port& port : model.program.inputs())
    if (const auto constant = model.constants.find(port.name); constant != model.constants.end())
      values.try_emplace(port.name, constant->second);
  RunOptions options;
  options.tracer = tracer;
  ThreadExecutor executor(1);
  const Executable executable(model.program, std::move(device));
  const RunResult result = sync_wait(executor, run(executable, std::move(values), options));
  Outcome outcome;
  for (const auto& [name, value] : result.outputs()) {
    if (!value.is_tensor())
      throw ArgumentError(fmt::format("output '{}': expected a tensor to write to a file, found an array or an order: pack it", name));
    const LoDTensor& tensor = value.tensor();
    outcome.outputs.emplace_back(name, LoDTensor(tensor.tensor().copy_to(CpuPlace{}), tensor.lod()));
  }
  outcome.stats = fmt::format("{} iterations, at most {} step scopes at once", result.turns, result.peak_step_scopes());
  return outcome;
}

}  // namespace millrace::app
