// SPDX-License-Identifier: Apache-2.0
#include "whole_run.h"

#include <chrono>

#include <fmt/format.h>

#include <millrace/kernels/library_products.h>
#include <millrace/runtime/distributed/partition_run.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/trace/tracer.h>

#include <support/standard_streams.h>

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

/// NAME.0, NAME.1 … as the list NAME, as outputs are written; NAME.length, where it is given, says how many.
TensorList list_of(Feeds& values, const std::string& name) {
  std::vector<Tensor> elements;
  for (auto found = values.find(name + ".0"); found != values.end(); found = values.find(fmt::format("{}.{}", name, elements.size()))) {
    elements.push_back(found->second.tensor().tensor());
    values.erase(found);
  }
  const auto length = values.extract(name + ".length");
  const auto count = static_cast<std::int64_t>(elements.size());
  if (length.empty() && count == 0)
    throw ArgumentError(
        fmt::format("input '{}': expected its elements as {}.0, {}.1 … (or {}.length, which is 0), found none", name, name, name, name));
  if (!length.empty() && length.mapped().tensor().tensor().item_int() != count)
    throw ArgumentError(fmt::format("input '{}': expected {} elements, as {}.length says, found {}", name,
                                    length.mapped().tensor().tensor().item_int(), name, count));
  return TensorList(std::move(elements));
}

/// Lists of the program, out of their elements.
void gather_lists(const Model& model, Feeds& values) {
  for (const Program::Port& port : model.program.inputs()) {
    const VarType& type = model.program.var(port.var).type;
    const bool list = type.is_list() || (type.is_optional() && type.held().is_list());
    if (list && !values.contains(port.name)) values[port.name] = list_of(values, port.name);
  }
}

Feeds with_constants(const Model& model, const std::map<std::string, LoDTensor>& feeds) {
  Feeds values(feeds.begin(), feeds.end());
  for (const Program::Port& port : model.program.inputs())
    if (const auto constant = model.constants.find(port.name); constant != model.constants.end())
      values.try_emplace(port.name, constant->second);
  gather_lists(model, values);
  return values;
}

Outcome outcome_of(const Model& model, const RunResult& result) {
  Outcome outcome;
  for (const Program::Port& port : model.program.outputs())
    add_output(outcome.outputs, port.name, model.program.var(port.var).type, result.value(port.name));
  return outcome;
}

/// The number of loops that ran in each backend, and the reasons why some went iteration by iteration.
std::string iterations(const RunResult& result) {
  std::string text = fmt::format("{} iterations", result.iterations);
  if (result.peak_step_scopes() > 0) text += fmt::format(", at most {} step scopes at once", result.peak_step_scopes());
  if (result.fused_loops > 0) text += fmt::format(", loops fused: {}", result.fused_loops);
  if (result.captured_loops > 0) text += fmt::format(", loops captured: {}", result.captured_loops);
  for (const std::string& line : result.iteration_by_iteration) text += "; " + line;
  return text;
}

/// The products of matrices that were probed on a device, and the library that each is of.
void note_products(Device& device, Tracer* tracer, std::string& stats) {
  for (const std::string& line : library_products(device)) {
    stats += "; " + line;
    if (tracer != nullptr) tracer->instant("product", line, 0, -1);
  }
}

}  // namespace

Outcome run_program(const Model& model, const std::map<std::string, LoDTensor>& feeds, const std::shared_ptr<Device>& device,
                    RunOptions options) {
  ThreadExecutor executor(1);
  const auto begin = std::chrono::steady_clock::now();
  const Executable executable(model.program, device);
  const double setup = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const RunResult result = sync_wait(executor, run(executable, with_constants(model, feeds), options));
  Outcome outcome = outcome_of(model, result);
  outcome.setup_seconds = setup;
  outcome.stats = iterations(result);
  note_products(*device, options.tracer, outcome.stats);
  return outcome;
}

Outcome run_on_ranks(const Model& model, const std::map<std::string, LoDTensor>& feeds, const std::vector<std::shared_ptr<Device>>& devices,
                     RunOptions options) {
  const Partition partition = partition_over_ranks(model.program, static_cast<int>(devices.size()));
  for (const std::string& line : partition.kept()) complain("millrace", line);
  const std::vector<RunResult> results = run_on_local_ranks(partition, devices, with_constants(model, feeds), options);
  Outcome outcome = outcome_of(model, results[0]);
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    outcome.stats += fmt::format("{}rank {}: {}", rank > 0 ? ", " : "", rank, iterations(results[rank]));
  return outcome;
}

Outcome run_among_processes(const Model& model, const std::map<std::string, LoDTensor>& feeds, std::shared_ptr<Device> device,
                            Rendezvous& ranks, const ProcessRunOptions& options) {
  const Partition partition = partition_over_ranks(model.program, ranks.world_size());
  if (ranks.rank() == 0)
    for (const std::string& line : partition.kept()) complain("millrace", line);
  const RunResult result = run_as_rank(ranks, partition, std::move(device), with_constants(model, feeds), options);
  Outcome outcome;
  if (ranks.rank() == 0) outcome = outcome_of(model, result);
  outcome.stats = iterations(result);
  return outcome;
}

}  // namespace millrace::app
