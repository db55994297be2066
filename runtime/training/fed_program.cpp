// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/fed_program.h>

#include <algorithm>

#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/training/extract.h>

namespace millrace::training {
namespace {

constexpr const char* step_input = "step";

bool counts(const Program& program) {
  return std::any_of(program.inputs().begin(), program.inputs().end(), [](const auto& port) { return port.name == step_input; });
}

}  // namespace

FedProgram::FedProgram(Program fed, std::shared_ptr<Device> device)
    : executable_(std::move(fed), std::move(device)), counts_steps_(counts(executable_.program())), executor_(1) {}

RunResult FedProgram::run(const Tensors& weights, Feeds feeds, std::int64_t step, const RunOptions& options,
                          std::shared_ptr<RunExchange> exchange) {
  for (const auto& [name, weight] : weights) feeds[fed_name(name)] = Value(weight);
  if (counts_steps_) feeds.try_emplace(step_input, Tensor::scalar(step));
  return sync_wait(executor_, exchange == nullptr ? millrace::run(executable_, std::move(feeds), options)
                                                  : millrace::run(executable_, std::move(feeds), options, std::move(exchange)));
}

}  // namespace millrace::training
