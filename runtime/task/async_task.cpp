// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/async_task.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/system_executor.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/asio_executor.h>

namespace millrace {

// The system's executor stands for "none": it would post to threads of Asio's own.
CompletionPlace::CompletionPlace(asio::any_completion_executor executor) {
  if (executor.target<asio::system_executor>() != nullptr) return;
  executor_ = asio::prefer(std::move(executor), asio::execution::outstanding_work.tracked);
}

asio::any_completion_executor CompletionPlace::fallback(const Executor& executor) {
  const auto* on = dynamic_cast<const AsioExecutor*>(&executor);
  if (on == nullptr) return asio::system_executor();
  return asio::prefer(on->executor(), asio::execution::blocking.never);
}

}  // namespace millrace
