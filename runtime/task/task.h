// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include <millrace/runtime/task/frame_pool.h>
#include <millrace/runtime/task/task_info.h>

namespace millrace {

template <class T>
class task;

/// A value or an error: what a task ends with.
template <class T>
class Outcome {
 public:
  template <class U>
  void set_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  void set_error(std::exception_ptr error) noexcept { error_ = std::move(error); }
  const std::exception_ptr& error() const noexcept { return error_; }
  /// Moves the value out, or throws the error.
  T take() {
    if (error_ != nullptr) std::rethrow_exception(error_);
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  std::exception_ptr error_;
};

template <>
class Outcome<void> {
 public:
  void set_value() noexcept {}
  void set_error(std::exception_ptr error) noexcept { error_ = std::move(error); }
  const std::exception_ptr& error() const noexcept { return error_; }
  void take() {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

/// The promise of every task, whatever it returns. Awaitables that need the running task are awaited from coroutines
/// with such a promise: `await_suspend(std::coroutine_handle<Promise> at)` finds it as `at.promise().info()`.
class TaskPromiseBase : public InFramePool {
 public:
  TaskInfo& info() const noexcept { return *info_; }
  /// Whether `start` was called.
  bool started() const noexcept { return info_ != nullptr; }
  /// Before the first resumption: the task it belongs to, and its awaiter (null: it is the body of that task).
  void start(TaskInfo& info, std::coroutine_handle<> awaiting) noexcept {
    info_ = &info;
    awaiting_ = awaiting;
  }

  std::suspend_always initial_suspend() const noexcept { return {}; }

  class FinalAwaiter {
   public:
    FinalAwaiter() noexcept {}
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      TaskPromiseBase& promise = ended.promise();
      if (promise.awaiting_) return promise.info_->transfer(promise.awaiting_);
      promise.info_->body_ended();
      return std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };
  FinalAwaiter final_suspend() const noexcept { return FinalAwaiter(); }

 private:
  TaskInfo* info_ = nullptr;
  std::coroutine_handle<> awaiting_;
};

/// Throws EmptyTaskError: a task was default-made or moved from (`started` false), or is awaited for a second time.
[[noreturn]] void throw_empty_task(bool started);

template <class T>
class TaskPromise final : public TaskPromiseBase {
 public:
  task<T> get_return_object() noexcept;
  template <class U = T>
    requires std::is_constructible_v<T, U>
  void return_value(U&& value) {
    outcome_.set_value(std::forward<U>(value));
  }
  void unhandled_exception() noexcept { outcome_.set_error(std::current_exception()); }
  Outcome<T>& outcome() noexcept { return outcome_; }

 private:
  Outcome<T> outcome_;
};

template <>
class TaskPromise<void> final : public TaskPromiseBase {
 public:
  task<void> get_return_object() noexcept;
  void return_void() noexcept {}
  void unhandled_exception() noexcept { outcome_.set_error(std::current_exception()); }
  Outcome<void>& outcome() noexcept { return outcome_; }

 private:
  Outcome<void> outcome_;
};

/// A coroutine that computes a `T`, some time: the one kind of coroutine here.
///
/// Lazy: nothing runs before it is awaited, spawned in a scope or started as a run, each at most once. An awaited task
/// is part of the task that awaits it: same executor, run, name and cancellation; it is entered and left by symmetric
/// transfer, through the queue of the executor every 64th time. After any wait it continues on its executor, whichever thread
/// woke it. Move-only; destroying a task that was never awaited destroys its arguments; one that is suspended in the
/// middle cannot be destroyed, since its awaiter's frame holds it.
///
/// Awaiting, spawning or starting a task that is default-made, moved from, or was awaited before throws EmptyTaskError.
///
/// Rules for the coroutines, since g++ 12 miscompiles other forms: one co_await in a statement, its operand a named
/// variable or a call; no conditional expression anywhere in a statement with co_await, such as
/// `co_await with_deadline(20ms, c ? a() : b())`, since g++ 12 destroys such a task twice and no overload can tell it from a call
/// (write `task<> work = c ? a() : b();` before); no lambda with captures as a coroutine; no over-aligned locals; a spawned
/// coroutine takes its arguments by value.
template <class T = void>
class [[nodiscard]] task {
 public:
  using promise_type = TaskPromise<T>;
  static_assert(!std::is_reference_v<T>, "a task returns a value");

  task() noexcept = default;
  explicit task(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}
  task(task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  task& operator=(task&& other) noexcept {
    task old(std::move(*this));
    frame_ = std::exchange(other.frame_, nullptr);
    return *this;
  }
  ~task() {
    if (frame_) frame_.destroy();
  }
  /// False when default-made or moved from.
  explicit operator bool() const noexcept { return frame_ != nullptr; }

  class Awaiter {
   public:
    explicit Awaiter(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> awaiting) const noexcept {
      TaskInfo& info = awaiting.promise().info();
      frame_.promise().start(info, awaiting);
      return info.transfer(frame_);
    }
    T await_resume() const { return frame_.promise().outcome().take(); }

   private:
    std::coroutine_handle<promise_type> frame_;
  };
  /// Only of an rvalue: `co_await f()`, `co_await std::move(t)`.
  Awaiter operator co_await() && {
    check_unstarted();
    return Awaiter(frame_);
  }
  /// EmptyTaskError unless the task can be awaited, spawned or started.
  void check_unstarted() const {
    if (!frame_ || frame_.promise().started()) throw_empty_task(frame_ != nullptr);
  }

  /// For the task layer: the body of `info`, which begins when `info` is first executed.
  std::coroutine_handle<> begin_body(TaskInfo& info) const noexcept {
    frame_.promise().start(info, nullptr);
    return frame_;
  }
  /// The result of the ended body.
  Outcome<T> take_outcome() const noexcept { return std::move(frame_.promise().outcome()); }

 private:
  std::coroutine_handle<promise_type> frame_;
};

template <class T>
task<T> TaskPromise<T>::get_return_object() noexcept {
  return task<T>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}
inline task<void> TaskPromise<void>::get_return_object() noexcept {
  return task<void>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}

}  // namespace millrace
