// SPDX-License-Identifier: Apache-2.0
#include "whole_run.h"

#include <fmt/format.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

namespace millrace::app {
namespace {

/// A list gives an output for each element, NAME.0 …, and NAME.length; an optional gives NAME.has, and what it holds.
void add_output(NamedOutputs& outputs, const std::string& name, const VarType& type, const Value& value) {
  if (type.is_optional()) {
    outputs.emplace_back(name + ".has", LoDTensor(Tensor::scalar(!value.empty())));
    if (!value.empty()) add_output(outputs, name, type.held(), value);
    return;
  }
  if (value.is_list()) {
    outputs.emplace_back(name + ".length", LoDTensor(Tensor::scalar(value.list().size())));
    for (std::int64_t i = 0; i < value.list().size(); ++i)
      outputs.emplace_back(fmt::format("{}.{}", name, i), LoDTensor(value.list().at(i).copy_to(CpuPlace{})));
    return;
  }
  if (!value.is_tensor())
    throw ArgumentError(
        fmt::format("output '{}': expected a tensor or a list to write to files, found an array or an order: pack it", name));
  const LoDTensor& tensor = value.tensor();
  outputs.emplace_back(name, LoDTensor(tensor.tensor().copy_to(CpuPlace{}), tensor.lod()));
}

}  // namespace

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
  for (const Program::Port& port : model.program.outputs())
    add_output(outcome.outputs, port.name, model.program.var(port.var).type, result.value(port.name));
  outcome.stats = fmt::format("{} iterations, at most {} step scopes at once", result.turns, result.peak_step_scopes());
  return outcome;
}

}  // namespace millrace::app
