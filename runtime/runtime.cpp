// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/runtime.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include <fmt/format.h>

#include <millrace/runtime/task/asio_executor.h>
#include <millrace/runtime/task/cpu_count.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>

namespace millrace {

/// The runs of `async_run`, from their first step to their last. Shared with them.
class Runtime::LiveRuns {
 public:
  /// One run, for as long as this lives. CancelledError once the runtime goes away.
  class Entry {
   public:
    Entry(std::shared_ptr<LiveRuns> live, Run& run) : live_(std::move(live)), run_(&run) {
      const std::lock_guard lock(live_->mutex_);
      if (live_->closed_) throw CancelledError("run '" + run.name() + "': its runtime is going away");
      live_->runs_.push_back(run_);
    }
    ~Entry() {
      const std::lock_guard lock(live_->mutex_);
      std::erase(live_->runs_, run_);
      if (live_->runs_.empty()) live_->ended_.notify_all();
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

  /// Cancels those that live, and those that begin from now on.
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (Run* run : runs_) run->cancel();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return runs_.empty(); });
  }

  /// What `async_run` starts. `make` compiles, if the program is not yet.
  template <class Source>
  static task<RunResult> run(std::shared_ptr<LiveRuns> live, Source source, std::shared_ptr<Device> device, Feeds feeds,
                             RunOptions options) {
    TaskInfo& me = co_await this_task::info();
    const Entry entry(std::move(live), me.run());
    Executable executable = compiled(std::move(source), std::move(device));
    RunResult result = co_await millrace::run(std::move(executable), std::move(feeds), options);
    co_return std::move(result);
  }

 private:
  static Executable compiled(Executable executable, std::shared_ptr<Device>) { return executable; }
  static Executable compiled(Program program, std::shared_ptr<Device> device) { return Executable(std::move(program), std::move(device)); }

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<Run*> runs_;
  bool closed_ = false;
};

Runtime::Runtime(RuntimeOptions options) : devices_(std::move(options.devices)), live_(std::make_shared<LiveRuns>()) {
  if (options.context != nullptr && options.executor != nullptr)
    throw ArgumentError("runtime: expected an io_context or an executor of the embedder's, found both");
  const std::size_t team = options.kernel_threads != 0 ? options.kernel_threads : usable_cpus();
  devices_.insert(devices_.begin(), make_cpu_device(static_cast<int>(team), options.streams));
  for (std::size_t i = 0; i < devices_.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (devices_[i]->place() == devices_[k]->place())
        throw ArgumentError(
            fmt::format("runtime: expected devices of different places, found two of {}", devices_[i]->place().to_string()));
  if (options.trace) tracer_ = std::make_shared<Tracer>();
  executor_ = options.executor;
  if (executor_ != nullptr) return;
  if (options.context != nullptr) {
    own_executor_ = std::make_unique<AsioExecutor>(*options.context);
  } else {
    own_executor_ = std::make_unique<ThreadExecutor>(options.threads != 0 ? options.threads : usable_cpus());
    joins_ = true;
  }
  executor_ = own_executor_.get();
}

Runtime::~Runtime() {
  live_->close();
  if (joins_) live_->wait();
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

task<RunResult> Runtime::tracked(Executable executable, Feeds feeds, RunOptions options) const {
  if (options.tracer == nullptr) options.tracer = tracer_.get();
  return LiveRuns::run(live_, std::move(executable), nullptr, std::move(feeds), options);
}

task<RunResult> Runtime::tracked(Program program, Feeds feeds, RunOptions options) const {
  if (options.tracer == nullptr) options.tracer = tracer_.get();
  return LiveRuns::run(live_, std::move(program), devices_.front(), std::move(feeds), options);
}

}  // namespace millrace
