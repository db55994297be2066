// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>

#include <millrace/runtime/task/cancellation.h>
#include <millrace/runtime/task/sleep.h>
#include <millrace/runtime/task/task_info.h>

/// Queries of a task about itself.
namespace millrace::this_task {

class InfoAwaiter {
 public:
  InfoAwaiter() noexcept {}
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> at) noexcept {
    info_ = &at.promise().info();
    return false;
  }
  TaskInfo& await_resume() const noexcept { return *info_; }

 private:
  TaskInfo* info_ = nullptr;
};

class CheckpointAwaiter : public InfoAwaiter {
 public:
  CheckpointAwaiter() noexcept {}
  void await_resume() const { InfoAwaiter::await_resume().check_goes_on(); }
};

class YieldAwaiter {
 public:
  YieldAwaiter() noexcept {}
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> at) const noexcept {
    at.promise().info().post(at);
  }
  void await_resume() const noexcept {}
};

/// `TaskInfo& me = co_await this_task::info();` name, executor, run, token. Does not suspend.
inline InfoAwaiter info() noexcept { return InfoAwaiter(); }

/// A step boundary: throws CancelledError in a cancelled task. Does not suspend.
inline CheckpointAwaiter checkpoint() noexcept { return CheckpointAwaiter(); }

/// Lets others run: goes on behind everything that is queued on the executor now. Not a point of cancellation.
inline YieldAwaiter yield() noexcept { return YieldAwaiter(); }

/// Goes on once `duration` has passed on the executor's clock. An external wait; cancellable.
inline SleepWait sleep_for(Duration duration) noexcept { return SleepWait(duration); }

}  // namespace millrace::this_task
