// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <millrace/runtime/task/cancellation.h>
#include <millrace/runtime/task/task.h>
#include <millrace/runtime/task/this_task.h>

namespace millrace {

/// A part of a task that is cancelled at a time. While the region lives, the task obeys its cancellation, and through it the cancellation that the task
/// obeyed before.
class DeadlineRegion {
 public:
  DeadlineRegion(TaskInfo& task, Duration after);
  ~DeadlineRegion();
  DeadlineRegion(const DeadlineRegion&) = delete;
  DeadlineRegion& operator=(const DeadlineRegion&) = delete;
  /// Whether its time has passed, and nothing around it has ended the task.
  bool passed() const noexcept;

 private:
  class Alarm;
  TaskInfo& task_;
  ScopeState* outer_;
  Ref<ScopeState> state_;
  Ref<Alarm> alarm_;
};

[[noreturn]] void throw_deadline(const TaskInfo& task, Duration after);

/// `co_await with_deadline(after, work)`: cancels `work` when it has not ended `after` on the executor's clock, waits
/// until it has ended, and throws DeadlineError if it ended by that cancellation. `work` stays part of the awaiting
/// task. A pending deadline does not keep a run from being found deadlocked.
template <class T>
task<T> with_deadline(Duration after, task<T> work) {
  TaskInfo& me = co_await this_task::info();
  DeadlineRegion region(me, after);
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(work);
      co_return;
    } else {
      T value = co_await std::move(work);
      co_return std::move(value);
    }
  } catch (const CancelledError&) {
    if (!region.passed()) throw;
  }
  throw_deadline(me, after);
}

}  // namespace millrace
