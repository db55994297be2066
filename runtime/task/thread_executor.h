// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/timer_queue.h>

namespace millrace {

/// Threads that share one queue, first in, first out as seen by each poster, and sleep when it is empty: no CPU is used
/// while nothing is ready. While a device is about to complete what is awaited (tensor/awaited_soon.h), one of them spins for at most 100 µs at a
/// time. Destroying it runs what is queued, then joins; every run on it must have ended before, since
/// a task that still waits would never go on. Thread safety: every member, from any thread.
class ThreadExecutor final : public Executor {
 public:
  /// ArgumentError unless `threads` is 1 to 65536; ThreadError.
  explicit ThreadExecutor(std::size_t threads);
  ~ThreadExecutor() override;

  std::size_t threads() const noexcept { return threads_.size(); }

  void post(Runnable& runnable) noexcept override;
  bool running_in_this_thread() const noexcept override;
  bool serial() const noexcept override { return threads_.size() == 1; }
  TimePoint now() const noexcept override;
  void add_timer(Timer& timer, TimePoint when) noexcept override;
  bool cancel_timer(Timer& timer) noexcept override;

 private:
  void stop() noexcept;
  void work();
  void work_alone();
  void fire_due(std::unique_lock<std::mutex>& lock);
  bool wait_for_something(std::unique_lock<std::mutex>& lock);
  bool spin(std::unique_lock<std::mutex>& lock);
  bool wake_spinner() noexcept;

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const bool alone_;     // there is one thread
  RunnableQueue local_;  // posted by that thread itself, and used by it alone
  std::mutex mutex_;
  std::condition_variable changed_;
  RunnableQueue ready_;
  TimerQueue timers_;
  std::size_t sleepers_ = 0;
  std::atomic<bool>* spinner_ = nullptr;  // of a thread that spins: becomes true when there is something for it
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace millrace
