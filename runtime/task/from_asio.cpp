// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/from_asio.h>

#include <boost/asio/io_context.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/asio_executor.h>

namespace millrace {

asio::any_io_executor asio_executor_of(const TaskInfo& task) {
  const auto* executor = dynamic_cast<const AsioExecutor*>(&task.executor());
  if (executor != nullptr) return executor->executor();
  throw UnsupportedError("task '" + task.name() +
                         "' awaits an Asio operation without an executor: expected one as first argument of "
                         "from_asio, or a task that runs on an AsioExecutor");
}

}  // namespace millrace
