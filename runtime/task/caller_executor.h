// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/timer_queue.h>

namespace millrace {

/// Runs on the thread that waits for a run, and on no other: nothing is handed to a thread and back. Made for one run, by the thread that drives it;
/// other threads may post. A task that still waits when it is destroyed must not be posted any more.
class CallerExecutor final : public Executor {
 public:
  CallerExecutor() = default;

  void post(Runnable& runnable) noexcept override;
  bool running_in_this_thread() const noexcept override { return RuntimeThread::current() == this; }
  TimePoint now() const noexcept override { return std::chrono::steady_clock::now() - start_; }
  void add_timer(Timer& timer, TimePoint when) noexcept override;
  bool cancel_timer(Timer& timer) noexcept override;
  bool serial() const noexcept override { return true; }
  /// Runs what is ready, or waits until something is.
  Drive drive() override;
  /// `drive` with a wait of `longest` at most. The result is false when nothing ran.
  bool drive_for(Duration longest);

 private:
  bool run_ready();

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  RunnableQueue local_;  // of the thread that drives
  std::mutex mutex_;
  std::condition_variable changed_;
  RunnableQueue posted_;  // by other threads
  TimerQueue timers_;
  bool waits_ = false;
};

}  // namespace millrace
