// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>

#include <millrace/runtime/task/asio_executor.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/cpu_count.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/start_thread.h>

namespace millrace {

/// The runs of `async_run`. Shared with them.
class Runtime::LiveRuns {
 public:
  /// A run from its first step to its last. CancelledError when the runtime cancelled it before.
  class Entry {
   public:
    Entry(std::shared_ptr<LiveRuns> live, Run& run, std::uint64_t cancellations) : live_(std::move(live)), run_(&run) {
      const std::lock_guard lock(live_->mutex_);
      if (live_->closed_) throw CancelledError("run '" + run.name() + "': its runtime is going away");
      if (live_->cancellations_ != cancellations) throw CancelledError("run '" + run.name() + "': its runtime cancelled all runs");
      live_->runs_.push_back(run_);
    }
    ~Entry() {
      const std::lock_guard lock(live_->mutex_);
      std::erase(live_->runs_, run_);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    std::shared_ptr<LiveRuns> live_;
    Run* run_;
  };

  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return runs_.size();
  }

  /// Cancels those that were started.
  void cancel() noexcept {
    const std::lock_guard lock(mutex_);
    ++cancellations_;
    for (Run* run : runs_) run->cancel();
  }

  /// Cancels those that were started, and those that begin from now on.
  void close() noexcept {
    bool idle = false;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      idle = started_ == 0;
      for (Run* run : runs_) run->cancel();
    }
    if (idle) over_->advance(1);
  }

  /// The number of times that all runs were cancelled before.
  std::uint64_t started() {
    const std::lock_guard lock(mutex_);
    ++started_;
    return cancellations_;
  }
  /// Nothing is left of a run that was started.
  void ended() noexcept {
    const std::shared_ptr<Timeline> over = over_;
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      last = --started_ == 0 && closed_;
    }
    if (last) over->advance(1);
  }

  /// Reached once it is closed and nothing of the runs is left.
  Point over() const { return {over_, 1}; }

  /// The task of `async_run`. `make` compiles, if the program is not yet.
  template <class Source>
  static task<RunResult> run(std::shared_ptr<LiveRuns> live, std::shared_ptr<const std::uint64_t> began, Source source,
                             std::shared_ptr<Device> device, Feeds feeds, RunOptions options) {
    TaskInfo& me = co_await this_task::info();
    const Entry entry(std::move(live), me.run(), *began);
    Executable executable = compiled(std::move(source), std::move(device));
    RunResult result = co_await millrace::run(std::move(executable), std::move(feeds), options);
    co_return std::move(result);
  }

  /// The task of `async_shutdown`.
  static task<void> shut_down(std::shared_ptr<LiveRuns> live) {
    live->close();
    co_await ready(live->over());
  }

 private:
  static Executable compiled(Executable executable, std::shared_ptr<Device>) { return executable; }
  static Executable compiled(Program program, std::shared_ptr<Device> device) { return Executable(std::move(program), std::move(device)); }

  const std::shared_ptr<Timeline> over_ = std::make_shared<Timeline>();
  mutable std::mutex mutex_;
  std::vector<Run*> runs_;
  std::size_t started_ = 0;
  std::uint64_t cancellations_ = 0;
  bool closed_ = false;
};

namespace {

/// The objects that a run uses, so that it may outlive its runtime.
struct Kept {
  Kept(std::shared_ptr<Tracer> records, std::vector<std::shared_ptr<Device>> places, std::shared_ptr<Executor> runs)
      : tracer(std::move(records)), devices(std::move(places)), executor(std::move(runs)) {}
  std::shared_ptr<Tracer> tracer;
  std::vector<std::shared_ptr<Device>> devices;
  std::shared_ptr<Executor> executor;
};

/// Threads cannot join themselves: where the last run ends on them, behind its runtime, a helper does.
void destroy_executor(ThreadExecutor* executor) {
  if (!executor->running_in_this_thread()) {
    delete executor;
    return;
  }
  try {
    start_thread("runtime: the thread that joins its executor", [executor] { delete executor; }).detach();
  } catch (const std::exception& error) {
    // Nobody is left to throw to. Its threads sleep until the process ends.
    std::fprintf(stderr, "millrace: %s\n", error.what());
  }
}

std::shared_ptr<Device> cpu_device(const RuntimeOptions& options) {
  const std::size_t team = options.kernel_threads != 0 ? options.kernel_threads : usable_cpus();
  const std::size_t budget = options.memory_limit != 0 ? options.memory_limit : CachingResource::unlimited;
  auto memory = std::make_shared<CachingResource>(host_memory(), budget);
  return std::make_shared<CpuDevice>(static_cast<int>(team), options.streams, std::move(memory));
}

}  // namespace

Runtime::Runtime(RuntimeOptions options) : devices_(std::move(options.devices)), live_(std::make_shared<LiveRuns>()) {
  constexpr std::size_t most_threads = 1024;
  for (const std::size_t threads : {options.threads, options.kernel_threads})
    if (threads > most_threads) throw ArgumentError(fmt::format("runtime: expected at most {} threads, found {}", most_threads, threads));
  if ((options.context != nullptr) + (options.executor != nullptr) + static_cast<bool>(options.asio_executor) > 1)
    throw ArgumentError("runtime: expected an io_context, an executor of Asio's or an executor of the embedder's, found more than one");
  if (std::find(devices_.begin(), devices_.end(), nullptr) != devices_.end())
    throw ArgumentError("runtime: expected devices, found a null pointer among them");
  devices_.insert(devices_.begin(), cpu_device(options));
  for (std::size_t i = 0; i < devices_.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (devices_[i]->place() == devices_[k]->place())
        throw ArgumentError(
            fmt::format("runtime: expected devices of different places, found two of {}", devices_[i]->place().to_string()));
  if (options.trace) tracer_ = std::make_shared<Tracer>();
  executor_ = options.executor;
  if (executor_ != nullptr) return;
  if (options.context != nullptr) {
    own_executor_ = std::make_shared<AsioExecutor>(*options.context);
  } else if (options.asio_executor) {
    own_executor_ = std::make_shared<AsioExecutor>(options.asio_executor);
  } else {
    own_executor_.reset(new ThreadExecutor(options.threads != 0 ? options.threads : usable_cpus()), destroy_executor);
    joins_ = true;
  }
  executor_ = own_executor_.get();
}

Runtime::~Runtime() {
  live_->close();
  // Not on a thread of its own, which the runs need to end.
  if (joins_ && !executor_->running_in_this_thread()) live_->over().wait();
}

const std::shared_ptr<Device>& Runtime::device(const Place& place) const {
  std::string names;
  for (const std::shared_ptr<Device>& device : devices_) {
    if (device->place() == place) return device;
    names += (names.empty() ? "" : ", ") + device->place().to_string();
  }
  throw PlaceError(fmt::format("runtime: expected one of the places {}, found {}", names, place.to_string()));
}

std::size_t Runtime::live_runs() const { return live_->count(); }
void Runtime::cancel_all() noexcept { live_->cancel(); }
task<void> Runtime::shut_down() const { return LiveRuns::shut_down(live_); }

std::shared_ptr<const void> Runtime::means() const { return std::make_shared<const Kept>(tracer_, devices_, own_executor_); }

KeepAlive Runtime::kept_alive() const {
  return [kept = means()] { return kept; };
}

KeepAlive Runtime::counted(std::shared_ptr<std::uint64_t> began) const {
  return [kept = means(), live = live_, began = std::move(began)] {
    const auto let_go = [kept, live](const void*) mutable {
      kept.reset();
      live->ended();
    };
    *began = live->started();
    return std::shared_ptr<const void>(kept.get(), let_go);
  };
}

task<RunResult> Runtime::tracked(Executable executable, Feeds feeds, RunOptions options, std::shared_ptr<const std::uint64_t> began) const {
  if (options.tracer == nullptr) options.tracer = tracer_.get();
  return LiveRuns::run(live_, std::move(began), std::move(executable), nullptr, std::move(feeds), options);
}

task<RunResult> Runtime::tracked(Program program, Feeds feeds, RunOptions options, std::shared_ptr<const std::uint64_t> began) const {
  if (options.tracer == nullptr) options.tracer = tracer_.get();
  return LiveRuns::run(live_, std::move(began), std::move(program), devices_.front(), std::move(feeds), options);
}

}  // namespace millrace
