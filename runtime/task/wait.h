// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>
#include <exception>
#include <string>

#include <millrace/runtime/task/task_info.h>

namespace millrace {

/// Receives each task that can end a wait. The run's mutex is held, and mostly that of the resource: `visit` takes no lock.
class WriterVisitor {
 public:
  virtual void visit(TaskInfo& writer) noexcept = 0;

 protected:
  ~WriterVisitor() = default;
};

/// Base of every awaiter that suspends a task until something else happens. Derive from `Blocker` when only another
/// task of the same run can bring it about (a slot, a gate, a join), from `ExternalWait` when something outside does (a
/// stream, a timer, a socket).
///
/// A wait lives in the frame of the awaiting coroutine and is used once. The resource it waits for, under a lock of its
/// own, keeps the wait in a list while it is armed, and calls `wake` exactly once after it took the wait off that list.
/// `wake` may be called from any thread, but with no lock held that `arm`, `disarm` or `writers` takes; the task then
/// goes through the queue of its own executor. A cancelled task takes its wait back with `disarm` and throws
/// CancelledError. The wait may not be destroyed while it is armed.
class Wait {
 public:
  /// The awaited thing has happened. `error`, if any, is thrown in the waiting task. The wait may be gone when this
  /// returns.
  void wake(std::exception_ptr error = nullptr) noexcept;
  /// The waiting task. Valid from `arm` on.
  TaskInfo& task() const noexcept { return *task_; }

  bool await_ready() const noexcept { return false; }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> at) noexcept {
    return suspend(at.promise().info(), at);
  }
  /// Derived awaiters that return something call this first.
  void await_resume() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 protected:
  enum class Kind : unsigned char { blocker, join, external };
  enum class Armed : unsigned char { ready, waiting, start };

  explicit Wait(Kind kind) noexcept : kind_(kind) {}
  ~Wait() = default;
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  /// Registers with the resource, called with the run's mutex held: must not call `wake`, nor anything of the run.
  /// `ready`: it has happened already; nothing is registered and the task goes on. `waiting`: `wake` will be called,
  /// from now on. `start`: as `waiting`, but `start` is called first, with no lock held, and nothing can wake the task
  /// before.
  virtual Armed arm() noexcept = 0;
  /// Takes the registration back, called with the run's mutex held. False when `wake` was or will be called anyway.
  virtual bool disarm() noexcept = 0;
  /// See `arm`. May call `wake`.
  virtual void start() noexcept {}
  /// The awaited thing, for the reader of an error: "slot 3 of array 'states'".
  virtual std::string describe() const = 0;
  /// True when it is the doing of another task that is waited for, its end or its value: an error names such waits behind those
  /// that may be the cause.
  virtual bool indirect() const noexcept { return kind_ == Kind::join; }
  /// Visits the live tasks that could bring this about, called with the run's mutex held. All of them must be alive while
  /// they are visited, and a task that has just done it must be visited until it has called `wake`. A blocker that visits
  /// none is judged only when nothing of its run can run.
  virtual void writers(WriterVisitor& visitor) const { static_cast<void>(visitor); }
  /// True while a party outside every run may end this wait: then the wait is no part of a deadlock.
  virtual bool fed_from_outside() const { return false; }

 private:
  friend class Run;
  friend class ScopeState;
  bool suspend(TaskInfo& task, std::coroutine_handle<> at) noexcept;
  bool blocks() const noexcept { return kind_ != Kind::external; }

  TaskInfo* task_ = nullptr;
  Wait* previous_ = nullptr;
  Wait* next_ = nullptr;
  std::exception_ptr error_;
  Kind kind_;
};

/// Something a task waits for that only another task of its run can bring about. When that becomes impossible the wait
/// fails with a DeadlockError that quotes `describe()`. Override `arm`, `disarm`, `describe` and, where they are known,
/// `writers`.
class Blocker : public Wait {
 protected:
  Blocker() noexcept : Wait(Kind::blocker) {}
};

/// Something a task waits for that comes from outside its run. While a task waits for one, its run is not at rest.
class ExternalWait : public Wait {
 protected:
  ExternalWait() noexcept : Wait(Kind::external) {}
};

}  // namespace millrace
