// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/caller_executor.h>

#include <algorithm>

namespace millrace {

void CallerExecutor::post(Runnable& runnable) noexcept {
  if (running_in_this_thread()) return local_.push(runnable);
  const std::lock_guard lock(mutex_);
  posted_.push(runnable);
  // With the lock held: the executor may be gone once it is not.
  if (waits_) changed_.notify_one();
}

void CallerExecutor::add_timer(Timer& timer, TimePoint when) noexcept {
  const std::lock_guard lock(mutex_);
  timers_.add(timer, when);
  if (waits_) changed_.notify_one();
}

bool CallerExecutor::cancel_timer(Timer& timer) noexcept {
  const std::lock_guard lock(mutex_);
  return timers_.remove(timer);
}

Executor::Drive CallerExecutor::drive() {
  drive_for(last_time);
  return Drive::progressed;
}

bool CallerExecutor::drive_for(Duration longest) {
  if (run_ready()) return true;
  {
    const TimePoint end = after(longest);
    std::unique_lock lock(mutex_);
    waits_ = true;
    while (posted_.empty()) {
      const TimePoint next = timers_.empty() ? end : std::min(end, timers_.next());
      if (now() >= next) break;
      changed_.wait_until(lock, start_ + next);
    }
    waits_ = false;
  }
  return run_ready();
}

bool CallerExecutor::run_ready() {
  const RuntimeThread thread(*this);
  bool ran = false;
  {
    std::unique_lock lock(mutex_);
    while (Timer* due = timers_.empty() ? nullptr : timers_.pop_due(now())) {
      lock.unlock();
      due->fire();
      ran = true;
      lock.lock();
    }
    local_.append(posted_);
  }
  RunnableQueue batch = local_.take();
  while (Runnable* next = batch.pop()) {
    next->execute();
    ran = true;
  }
  return ran;
}

}  // namespace millrace
