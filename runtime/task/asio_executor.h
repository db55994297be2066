// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <boost/asio/any_io_executor.hpp>

#include <millrace/runtime/task/executor.h>

namespace boost::asio {
class io_context;
}

namespace millrace {

/// Tasks on an io_context that the embedder owns and runs, or on any executor of Asio's: a strand, a thread_pool's. Posted work runs
/// where that executor runs handlers, inside `io_context::run` between its handlers, one thing at a time however many threads run it. Queued tasks and pending timers keep `io_context::run`
/// from returning; a task that waits for something else does not: hold a work guard, or use `async_start`, which does.
/// The context must outlive the executor, and every run on it must have ended before the executor is destroyed.
/// Thread safety: every member, from any thread.
class AsioExecutor final : public Executor {
 public:
  explicit AsioExecutor(boost::asio::io_context& context);
  /// ArgumentError for an empty executor.
  explicit AsioExecutor(boost::asio::any_io_executor executor);
  ~AsioExecutor() override;

  const boost::asio::any_io_executor& executor() const noexcept;

  void post(Runnable& runnable) noexcept override;
  bool running_in_this_thread() const noexcept override;
  bool serial() const noexcept override { return true; }
  TimePoint now() const noexcept override;
  void add_timer(Timer& timer, TimePoint when) noexcept override;
  bool cancel_timer(Timer& timer) noexcept override;
  /// Throws BlockingError inside a handler of the io_context, thread_pool or strand: it would wait for itself.
  Drive drive() override;

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace millrace
