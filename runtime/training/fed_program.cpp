// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/fed_program.h>

#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/training/extract.h>

namespace millrace::training {
FedProgram::FedProgram(Program fed, std::shared_ptr<Device> device) : executable_(std::move(fed), std::move(device)) {}

RunResult FedProgram::run(const Tensors& weights, Feeds feeds, const RunOptions& options, std::shared_ptr<RunExchange> exchange) {
  for (const auto& [name, weight] : weights) feeds[fed_name(name)] = Value(weight);
  return sync_wait(exchange == nullptr ? millrace::run(executable_, std::move(feeds), options)
                                       : millrace::run(executable_, std::move(feeds), options, std::move(exchange)));
}

}  // namespace millrace::training
