// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>

#include <millrace/runtime/task/asio.h>

namespace millrace {

/// `executor` in the type of those of erased handlers. The executor made of it for an operation holds an io_context's own executor, which needs no memory; one type
/// converted to the other has a part on the heap, and so has each executor that an operation derives from it.
inline asio::any_completion_executor completion_executor(const asio::any_io_executor& executor) {
  using Direct = asio::io_context::executor_type;
  if (const Direct* const io = executor.target<Direct>()) return *io;
  return executor;
}

}  // namespace millrace
