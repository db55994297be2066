// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <millrace/runtime/task/cancellation.h>
#include <millrace/runtime/task/task.h>
#include <millrace/runtime/task/this_task.h>

namespace millrace {

/// A part of a task that can be cancelled alone: while it lives, the task obeys it, and through it what the task obeyed
/// before.
class CancelRegion {
 public:
  explicit CancelRegion(TaskInfo& task);
  ~CancelRegion();
  CancelRegion(const CancelRegion&) = delete;
  CancelRegion& operator=(const CancelRegion&) = delete;

  CancellationSource cancellation() const noexcept { return CancellationSource(task_.run(), *state_); }
  bool outer_cancelled() const noexcept;

 private:
  TaskInfo& task_;
  ScopeState* outer_;
  Ref<ScopeState> state_;
};

/// Cancels a region at a time, unless destroyed before.
class Deadline {
 public:
  Deadline(Executor& executor, Duration after, CancellationSource cancellation);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  bool passed() const noexcept;

 private:
  class State;
  Executor& executor_;
  Ref<State> state_;
};

[[noreturn]] void throw_deadline(const TaskInfo& task, Duration after);

/// `co_await with_deadline(after, work)`: cancels `work` when it has not ended `after` on the executor's clock, waits
/// until it has ended, and throws DeadlineError if it ended by that cancellation. `work` stays part of the awaiting
/// task. A pending deadline does not keep a run from being found deadlocked.
template <class T>
task<T> with_deadline(Duration after, task<T> work) {
  TaskInfo& me = co_await this_task::info();
  CancelRegion region(me);
  Deadline deadline(me.executor(), after, region.cancellation());
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(work);
      co_return;
    } else {
      T value = co_await std::move(work);
      co_return std::move(value);
    }
  } catch (const CancelledError&) {
    if (!deadline.passed() || region.outer_cancelled()) throw;
  }
  throw_deadline(me, after);
}

}  // namespace millrace
