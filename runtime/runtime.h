// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/any_io_executor.hpp>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/task/async_task.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/device.h>

namespace boost::asio {
class io_context;
}

namespace millrace {

struct RuntimeOptions {
  /// Threads that run tasks, when the runtime has an executor of its own. 0: `usable_cpus()`. At most 1024: ArgumentError.
  std::size_t threads = 0;
  /// Threads that one kernel may split over. 0: `usable_cpus()`. At most 1024: ArgumentError. Results do not depend on it.
  std::size_t kernel_threads = 0;
  /// Streams of the CPU. Results do not depend on it.
  std::size_t streams = 4;
  /// Where tasks run instead, at most one of three: the embedder's io_context, any executor of Asio's (a strand, a thread_pool's: see
  /// AsioExecutor), or an executor of the embedder's. It must outlive the runtime and every run that the runtime started.
  boost::asio::io_context* context = nullptr;
  boost::asio::any_io_executor asio_executor;
  Executor* executor = nullptr;
  /// Places besides the CPU: backends from outside.
  std::vector<std::shared_ptr<Device>> devices;
  /// The most bytes that tensors on the CPU may take, weights and feeds that the embedder made not counted. 0: no bound. A run that needs
  /// more fails with OutOfMemoryError, which names op, iteration and size; others go on.
  std::size_t memory_limit = 0;
  /// Records what runs, for `tracer()`.
  bool trace = false;

  RuntimeOptions() = default;
};

/// The first object of an embedding program: it owns the executor, the devices with their thread teams, streams and memory, and the trace.
/// Nothing is global, so a process may have several. Thread safety: every member, from any thread.
///
/// Destroying it is safe anywhere, a handler of its own included: it cancels the runs that `async_run` started, which keep alive what they use
/// and complete with CancelledError. With threads of its own, and destroyed on another thread, it also waits until nothing of them is left.
/// On an executor of the embedder's the runs end while that goes on running: `co_await runtime.async_shutdown(use_awaitable)` ends when all have. Runs
/// that the embedder itself started on `executor()` must have ended before, or hold `means`.
class Runtime {
 public:
  /// ArgumentError: both a context and an executor, a null device, or two devices of one place.
  explicit Runtime(RuntimeOptions options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Executor& executor() const noexcept { return *executor_; }
  /// PlaceError names the places that there are.
  const std::shared_ptr<Device>& device(const Place& place = CpuPlace{}) const;
  const std::vector<std::shared_ptr<Device>>& devices() const noexcept { return devices_; }
  /// Null unless `trace` was asked for.
  Tracer* tracer() const noexcept { return tracer_.get(); }
  /// Keeps the runtime's own threads, the devices and the trace alive, for an object that uses them and may outlive the runtime.
  std::shared_ptr<const void> means() const;
  /// Runs that `async_run` started and that have not ended.
  std::size_t live_runs() const;
  /// Cancels every run that `async_run` has started so far: it completes with CancelledError unless it ends before it notices. Later runs
  /// are not touched.
  void cancel_all() noexcept;
  /// Cancels every run, those to come too, and completes when nothing of them is left and their handlers were called, or posted to their
  /// executors. For any completion token of `void(std::exception_ptr)`. More than one may be under way; destroying the runtime meanwhile is
  /// safe.
  template <class Token>
  auto async_shutdown(Token&& token) {
    return async_start(*executor_, shut_down(), std::forward<Token>(token), "async_shutdown", kept_alive());
  }

  /// The program made ready for one of the places.
  Executable compile(Program program, const Place& place = CpuPlace{}) const { return Executable(std::move(program), device(place)); }

  /// Starts a run of a program that was compiled, for any completion token of `void(std::exception_ptr, RunResult)`: see `async_start`,
  /// which says where handlers are called and how an allocator and a cancellation slot that go with the token are used. Errors are those of
  /// `run`.
  template <class Token>
  auto async_run(Executable executable, Feeds feeds, Token&& token, RunOptions options = {}) {
    const auto began = std::make_shared<std::uint64_t>(0);
    return async_start(*executor_, tracked(std::move(executable), std::move(feeds), options, began), std::forward<Token>(token),
                       "async_run", counted(began));
  }
  /// Starts a run that compiles the program for the CPU first. A program that runs more than once is compiled once, by `compile`.
  template <class Token>
  auto async_run(Program program, Feeds feeds, Token&& token, RunOptions options = {}) {
    const auto began = std::make_shared<std::uint64_t>(0);
    return async_start(*executor_, tracked(std::move(program), std::move(feeds), options, began), std::forward<Token>(token), "async_run",
                       counted(began));
  }

 private:
  class LiveRuns;
  task<RunResult> tracked(Executable executable, Feeds feeds, RunOptions options, std::shared_ptr<const std::uint64_t> began) const;
  task<RunResult> tracked(Program program, Feeds feeds, RunOptions options, std::shared_ptr<const std::uint64_t> began) const;
  task<void> shut_down() const;
  /// The means of a run: executor, devices, tracer.
  KeepAlive kept_alive() const;
  /// The means of a run that counts among the runs that are not yet over. `began`: how often all runs were cancelled before it was started.
  KeepAlive counted(std::shared_ptr<std::uint64_t> began) const;

  std::shared_ptr<Tracer> tracer_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::shared_ptr<LiveRuns> live_;
  std::shared_ptr<Executor> own_executor_;
  Executor* executor_ = nullptr;
  bool joins_ = false;
};

}  // namespace millrace
