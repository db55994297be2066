// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <millrace/runtime/task/cancellation.h>
#include <millrace/runtime/task/gate.h>
#include <millrace/runtime/task/task.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/wait.h>
#include <millrace/tensor/pool.h>

namespace millrace {

template <class T>
class Spawned;

/// The wait of `Scope::join`.
class JoinWait final : public Wait {
 public:
  explicit JoinWait(ScopeState& state, bool& thrown) noexcept : Wait(Kind::join), state_(state), thrown_(thrown) {}
  void await_resume() const;

 private:
  Armed arm() noexcept override;
  bool disarm() noexcept override { return false; }
  std::string describe() const override;

  ScopeState& state_;
  bool& thrown_;
};

/// Children of a task, that end before it does.
///
///     TaskInfo& me = co_await this_task::info();
///     Scope scope(me);
///     scope.spawn(work(1), "first");
///     scope.spawn(work(2), "second");
///     co_await scope.join();
///
/// The first child that fails cancels the others; `join` throws its error once all have ended, later errors are kept
/// behind it. A scope obeys the cancellation of the task that made it. `spawn` and `start` may be called by the owner
/// and by any task below it, before the join is over; all else but `cancel` by the owner alone. A scope is meant to be
/// joined: when it is destroyed earlier (an exception passes), its children are cancelled, the owner does not end
/// before they do, and an error of theirs becomes the owner's unless that has one; such children must not use what the
/// owner's frame held. `with_scope` joins on every path.
class Scope {
 public:
  enum class Cancellation { inherited, shielded };
  /// A shielded scope is not cancelled with its owner: it is for the work that must still be done then.
  explicit Scope(TaskInfo& owner, Cancellation cancellation = Cancellation::inherited);
  ~Scope() { state_->abandon(thrown_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Queues `work` as a task of its own, on the owner's executor or on `executor`. An empty name is the owner's.
  void spawn(task<void> work, std::string name = {}) { begin(make(owner_.executor(), std::move(work), std::move(name))); }
  void spawn_on(Executor& executor, task<void> work, std::string name = {}) { begin(make(executor, std::move(work), std::move(name))); }
  /// As `spawn`, with a handle on the result.
  template <class T>
  Spawned<T> start(task<T> work, std::string name = {});

  /// `co_await scope.join()`: waits until no child is left and throws the first error; CancelledError if there is none
  /// but children were cancelled along with the owner. Not cancellable itself. The scope may be used again afterwards.
  JoinWait join() noexcept { return JoinWait(*state_, thrown_); }
  void cancel() noexcept { state_->cancel(); }
  /// Counts as the error of a child: for the owner's own part of the work.
  void fail(std::exception_ptr error) noexcept { state_->record(std::move(error)); }

  /// Children that have not ended.
  std::size_t live() const noexcept { return state_->live(); }
  /// After a join that threw: the errors after the first, in the order in which they came.
  std::vector<std::exception_ptr> later_errors() const;
  CancellationSource cancellation() const noexcept { return CancellationSource(owner_.run(), *state_); }

 private:
  class Child;
  TaskInfo& make(Executor& executor, task<void>&& work, std::string&& name);
  static void begin(TaskInfo& child) noexcept;

  TaskInfo& owner_;
  Ref<ScopeState> state_;
  bool thrown_ = false;
};

/// The result of a child: `T value = co_await handle;`, by one task of the run, at most once. Throws what the child
/// threw, which its scope reports as well. Cancellable. The handle may be dropped at any time, but not while a task
/// waits for it.
template <class T>
class [[nodiscard]] Spawned {
  struct State;

 public:
  bool ended() const { return state_->gate.is_open(); }

  class ResultWait final : public Gate::GateWait {
   public:
    explicit ResultWait(State& state) noexcept : Gate::GateWait(state.gate), outcome_(state.outcome) {}
    T await_resume() const {
      Gate::GateWait::await_resume();
      return outcome_.take();
    }

   private:
    Outcome<T>& outcome_;
  };
  /// EmptyTaskError of a handle that was moved from.
  ResultWait operator co_await() const {
    if (!state_) throw_empty_task(false);
    return ResultWait(*state_);
  }

 private:
  friend class Scope;
  struct State : RefCounted, Pooled {
    explicit State(const std::string& name) : gate("the end of task '" + name + "'") {}
    Gate gate;
    Outcome<T> outcome;
  };
  explicit Spawned(Ref<State> state) noexcept : state_(std::move(state)) {}

  static task<void> run(Ref<State> state, task<T> work) {
    std::exception_ptr error;
    try {
      if constexpr (std::is_void_v<T>) {
        co_await std::move(work);
      } else {
        T value = co_await std::move(work);
        state->outcome.set_value(std::move(value));
      }
    } catch (...) {
      error = std::current_exception();
      state->outcome.set_error(error);
    }
    state->gate.open();
    if (error != nullptr) std::rethrow_exception(error);
  }

  Ref<State> state_;
};

template <class T>
Spawned<T> Scope::start(task<T> work, std::string name) {
  using State = typename Spawned<T>::State;
  work.check_unstarted();
  Ref<State> state(new State(name.empty() ? owner_.name() : name));
  TaskInfo& child = make(owner_.executor(), Spawned<T>::run(state, std::move(work)), std::move(name));
  state->gate.set_writer(child);
  begin(child);
  return Spawned<T>(std::move(state));
}

/// Runs `body(scope, args...)` and joins the scope whether that returned or threw; throws its error, or the first of a
/// child. `body` is a function or a lambda without captures that makes a `task<>`.
template <class Body, class... Args>
task<void> with_scope(Body body, Args... args) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  try {
    task<void> work = body(scope, std::move(args)...);
    co_await std::move(work);
  } catch (...) {
    scope.fail(std::current_exception());
  }
  co_await scope.join();
}

}  // namespace millrace
