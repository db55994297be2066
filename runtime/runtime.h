// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/task/async_task.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/device.h>

namespace boost::asio {
class io_context;
}

namespace millrace {

struct RuntimeOptions {
  /// Threads that run tasks, when the runtime has an executor of its own. 0: `usable_cpus()`.
  std::size_t threads = 0;
  /// Threads that one kernel may split over. 0: `usable_cpus()`. Results do not depend on it.
  std::size_t kernel_threads = 0;
  /// Streams of the CPU. Results do not depend on it.
  std::size_t streams = 4;
  /// The embedder's io_context, on which tasks then run, or an executor of the embedder's. At most one of the two; it must outlive the
  /// runtime.
  boost::asio::io_context* context = nullptr;
  Executor* executor = nullptr;
  /// Places besides the CPU: backends from outside.
  std::vector<std::shared_ptr<Device>> devices;
  /// Records what runs, for `tracer()`.
  bool trace = false;

  RuntimeOptions() = default;
};

/// What an embedding program makes first: it owns the executor, the devices with their thread teams, streams and memory, and the trace.
/// Nothing is global, so a process may have several. Destroying it cancels the runs that it started and, on threads of its own, waits for
/// their ends; on an executor of the embedder's they must have ended before. Thread safety: every member, from any thread.
class Runtime {
 public:
  /// ArgumentError: both a context and an executor, or two devices of one place.
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
  /// Runs that `async_run` started and that have not ended.
  std::size_t live_runs() const;

  /// The program made ready for one of the places.
  Executable compile(Program program, const Place& place = CpuPlace{}) const { return Executable(std::move(program), device(place)); }

  /// Starts a run of a program that was compiled, for any completion token of `void(std::exception_ptr, RunResult)`: see `async_start`,
  /// which says where handlers are called and how an allocator and a cancellation slot that go with the token are used. Errors are those of
  /// `run`.
  template <class Token>
  auto async_run(Executable executable, Feeds feeds, Token&& token, RunOptions options = {}) {
    return async_start(*executor_, tracked(std::move(executable), std::move(feeds), options), std::forward<Token>(token), "async_run");
  }
  /// The same, compiled for the CPU first, as part of the run; to run more than once, keep what `compile` gives.
  template <class Token>
  auto async_run(Program program, Feeds feeds, Token&& token, RunOptions options = {}) {
    return async_start(*executor_, tracked(std::move(program), std::move(feeds), options), std::forward<Token>(token), "async_run");
  }

 private:
  class LiveRuns;
  task<RunResult> tracked(Executable executable, Feeds feeds, RunOptions options) const;
  task<RunResult> tracked(Program program, Feeds feeds, RunOptions options) const;

  std::shared_ptr<Tracer> tracer_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::shared_ptr<LiveRuns> live_;
  std::unique_ptr<Executor> own_executor_;
  Executor* executor_ = nullptr;
  bool joins_ = false;
};

}  // namespace millrace
