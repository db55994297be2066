// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <millrace/runtime/task/ref.h>
#include <millrace/runtime/task/scope_state.h>
#include <millrace/runtime/task/wait.h>

namespace millrace {

class DeadlockError;

/// The state that all tasks below one root share: the number of tasks that can still do something by themselves, the list of those
/// that wait, and the search for tasks that would wait for ever.
///
/// Activity is the number of tasks that run, are queued or wait for something outside, plus one for each
/// `ExternalHold`. Only a wait for another task lowers it without ending a task. A wait is entered and left with the
/// run's mutex held, and the resource it waits for is asked inside, so that between the two no wake-up is lost and none
/// is counted twice. The party that ends a wait is itself active until it has woken the waiter: at zero, therefore,
/// nothing is under way. Two situations end in a DeadlockError:
///  - activity is zero and tasks wait: all of them, save those with a live writer in another run;
///  - a new wait closes a set in which each task waits only for tasks of the set, and has no live child outside it.
///    Nothing else in the run has to stop for this. A wait without known writers never closes a set.
/// The waiters of the set fail, in the order in which they began to wait, unless they wait for their own children;
/// other runs go on. Nothing here looks at a clock.
class Run final : public RefCounted {
 public:
  explicit Run(std::string name, Tracer* tracer = nullptr);
  ~Run();

  const std::string& name() const noexcept { return name_; }
  Tracer* tracer() const noexcept { return tracer_; }
  ScopeState& root() noexcept { return *root_; }
  /// Cancels every task of the run. Any thread; also after the run has ended.
  void cancel() noexcept { root_->cancel(); }

  std::size_t activity() const noexcept { return active_.load(std::memory_order_acquire); }
  /// The wait graph as it is now: one line per waiting task, "task 'a' waits for …". For people and tests.
  std::vector<std::string> waits() const;
  /// Looks for closed sets among all waits; for a resource that took a writer off a slot which tasks wait for.
  void recheck() noexcept;

  /// For the task layer. While anything is active the run keeps itself alive: a child says that it ended before it leaves, and in between
  /// the root may end and let go of the run.
  void enter() noexcept {
    if (active_.fetch_add(1, std::memory_order_relaxed) == 0) Ref<Run>(this).detach();
  }
  void leave() noexcept;

 private:
  friend class DeadlineRegion;
  friend class JoinWait;
  friend class ScopeState;
  friend class Wait;

  bool suspend(Wait& wait) noexcept;
  void wake(Wait& wait, std::exception_ptr error) noexcept;
  void wake_joiner(ScopeState& scope) noexcept;
  void cancel(ScopeState& region) noexcept;
  void open(ScopeState& scope) noexcept;
  void close(ScopeState& scope) noexcept;

  // All of these but `post` expect the mutex to be held; the tasks they put into `woken` are posted after it is
  // released.
  void link(Wait& wait) noexcept;
  void unlink(Wait& wait) noexcept;
  bool take_back(Wait& wait, const std::exception_ptr& error, RunnableQueue& woken) noexcept;
  bool blocked(const TaskInfo& task) const noexcept;
  bool mark_closed_set_of(TaskInfo& task) noexcept;
  bool mark_what_it_needs(TaskInfo& task, RunnableQueue& open) noexcept;
  bool mark_all_stuck(bool at_rest) noexcept;
  bool is_stuck(TaskInfo& task, bool at_rest) noexcept;
  void fail_marked(RunnableQueue& woken) noexcept;
  DeadlockError deadlock_of_marked() const;
  static void post(RunnableQueue woken) noexcept;

  const std::string name_;
  Tracer* const tracer_;
  std::atomic<std::size_t> active_{0};

  mutable std::mutex mutex_;
  Wait* first_wait_ = nullptr;
  Wait* last_wait_ = nullptr;
  ScopeState* first_scope_ = nullptr;  // parents before children
  ScopeState* last_scope_ = nullptr;
  std::size_t blocked_ = 0;
  std::uint64_t epoch_ = 0;
  Ref<ScopeState> root_;
};

/// A promise that an event outside a run will end waits of its tasks (an array that a socket feeds): while
/// one lives, the run is not at rest. Make it from a task of the run; destroy it on any thread.
class ExternalHold {
 public:
  explicit ExternalHold(Run& run) noexcept : run_(&run) { run_->enter(); }
  ExternalHold(ExternalHold&& other) noexcept : run_(std::move(other.run_)) {}
  ExternalHold& operator=(ExternalHold&& other) noexcept {
    ExternalHold old(std::move(*this));
    run_ = std::move(other.run_);
    return *this;
  }
  ~ExternalHold() {
    if (run_) run_->leave();
  }

 private:
  Ref<Run> run_;
};

}  // namespace millrace
