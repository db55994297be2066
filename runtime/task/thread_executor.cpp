// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/thread_executor.h>

#include <algorithm>
#include <string>
#include <utility>

#include <millrace/tensor/awaited_soon.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/start_thread.h>

namespace millrace {
namespace {

constexpr std::chrono::microseconds most_spinning{100};
constexpr std::size_t most_threads = 65536;

}  // namespace

ThreadExecutor::ThreadExecutor(std::size_t threads) : alone_(threads == 1) {
  if (threads == 0 || threads > most_threads)
    throw ArgumentError("ThreadExecutor: expected 1 to " + std::to_string(most_threads) + " threads, found " + std::to_string(threads));
  threads_.reserve(threads);
  try {
    for (std::size_t i = 0; i < threads; ++i)
      threads_.push_back(start_thread("ThreadExecutor: thread " + std::to_string(i + 1) + " of " + std::to_string(threads),
                                      [this] { alone_ ? work_alone() : work(); }));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadExecutor::~ThreadExecutor() { stop(); }

void ThreadExecutor::stop() noexcept {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_spinner();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadExecutor::post(Runnable& runnable) noexcept {
  if (alone_ && running_in_this_thread()) return local_.push(runnable);
  const bool mine = running_in_this_thread();
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    ready_.push(runnable);
    wake = !wake_spinner() && sleepers_ != 0;
    // Posted work may be the last, and the executor gone once the lock is: only its own threads, which it joins, may touch it then.
    if (wake && !mine) changed_.notify_one();
  }
  if (wake && mine) changed_.notify_one();
}

bool ThreadExecutor::running_in_this_thread() const noexcept { return RuntimeThread::current() == this; }

TimePoint ThreadExecutor::now() const noexcept { return std::chrono::steady_clock::now() - start_; }

void ThreadExecutor::add_timer(Timer& timer, TimePoint when) noexcept {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    const bool first = timers_.empty() || when < timers_.next();
    wake = first && sleepers_ != 0;
    timers_.add(timer, when);
    if (first) wake_spinner();
  }
  // All of them: one that is woken may run a task first, and the others would sleep past the new time.
  if (wake) changed_.notify_all();
}

bool ThreadExecutor::cancel_timer(Timer& timer) noexcept {
  std::lock_guard lock(mutex_);
  return timers_.remove(timer);
}

void ThreadExecutor::work() {
  const RuntimeThread thread(*this);
  std::unique_lock lock(mutex_);
  for (;;) {
    fire_due(lock);
    if (Runnable* next = ready_.pop()) {
      lock.unlock();
      next->execute();
      lock.lock();
    } else if (!wait_for_something(lock)) {
      return;
    }
  }
}

// A single thread posts to itself without a lock; otherwise one lock serves all waiting work.
void ThreadExecutor::work_alone() {
  const RuntimeThread thread(*this);
  for (;;) {
    RunnableQueue batch;
    {
      std::unique_lock lock(mutex_);
      fire_due(lock);
      while (local_.empty() && ready_.empty()) {
        if (!wait_for_something(lock)) return;
        fire_due(lock);
      }
      batch = local_.take();
      batch.append(ready_);
    }
    while (Runnable* next = batch.pop()) next->execute();
  }
}

void ThreadExecutor::fire_due(std::unique_lock<std::mutex>& lock) {
  while (Timer* due = timers_.empty() ? nullptr : timers_.pop_due(now())) {
    lock.unlock();
    due->fire();
    lock.lock();
  }
}

/// Wakes the spinning thread. False: no thread spins. The mutex is held.
bool ThreadExecutor::wake_spinner() noexcept {
  if (spinner_ == nullptr) return false;
  std::exchange(spinner_, nullptr)->store(true, std::memory_order_release);
  return true;
}

/// Spins for a moment while a device is about to complete something. True: work or an earlier timer came.
bool ThreadExecutor::spin(std::unique_lock<std::mutex>& lock) {
  if (spinner_ != nullptr || !AwaitedSoon::any()) return false;
  auto until = std::chrono::steady_clock::now() + most_spinning;
  if (!timers_.empty()) until = std::min(until, start_ + timers_.next());
  std::atomic<bool> woken{false};
  spinner_ = &woken;
  lock.unlock();
  while (!woken.load(std::memory_order_acquire) && AwaitedSoon::any() && std::chrono::steady_clock::now() < until) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  lock.lock();
  if (spinner_ == &woken) spinner_ = nullptr;
  return woken.load(std::memory_order_relaxed);
}

// False when the executor is stopping.
bool ThreadExecutor::wait_for_something(std::unique_lock<std::mutex>& lock) {
  if (stopping_) return false;
  if (spin(lock)) return true;
  ++sleepers_;
  if (timers_.empty()) {
    changed_.wait(lock);
  } else {
    changed_.wait_until(lock, start_ + timers_.next());
  }
  --sleepers_;
  return true;
}

}  // namespace millrace
