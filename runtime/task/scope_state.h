// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/ref.h>
#include <millrace/tensor/pool.h>

namespace millrace {

class JoinWait;
class Run;
class TaskInfo;
class Wait;

/// The shared part of a scope: children that are alive, the cancellation they obey, their errors. Used through `Scope`,
/// `CancellationSource` and `CancellationToken`; a region that only cancels has no children.
class ScopeState final : public RefCounted, public Pooled {
 public:
  /// `owner` is null for the outermost scope of a run; `parent` is the region whose cancellation reaches this one, or
  /// null. A region may end at a time of its own; the first time around a task counts.
  ScopeState(Run& run, TaskInfo* owner, ScopeState* parent, TimePoint ends = TimePoint::max()) noexcept
      : run_(&run), owner_(owner), parent_(parent), ends_(parent == nullptr ? ends : std::min(parent->ends_, ends)) {}

  /// A scope of `owner`, registered with its run.
  static Ref<ScopeState> open_in(TaskInfo& owner, bool inherits_cancellation);

  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }
  /// Cancels every task below: their waits end, later ones throw. Any thread; a no-op from the second time on.
  void cancel() noexcept;
  /// When a deadline cancels it, by the clock of the executor of its tasks; the last time without one.
  TimePoint ends() const noexcept { return ends_; }

  std::size_t live() const noexcept { return state_.load(std::memory_order_acquire) / one_child; }
  /// A child is about to be posted: counts it here and in the run.
  void child_begins() noexcept;
  /// A child has ended with `error` or null; passes on the thread's count of the run's activity.
  void child_ended(std::exception_ptr error) noexcept;
  /// The first error cancels the scope, later ones are kept behind it as far as memory reaches; the end of a task that was
  /// cancelled is no error.
  void record(std::exception_ptr error) noexcept;

  /// Once no child is left.
  std::exception_ptr first_error() const noexcept;
  std::vector<std::exception_ptr> later_errors() const;

  /// The scope is destroyed. Children that are still alive are cancelled, and their owner will not complete before they
  /// do; an error that no join has thrown becomes the owner's.
  void abandon(bool errors_thrown) noexcept;

 private:
  friend class JoinWait;
  friend class Run;
  friend class TaskInfo;
  void orphans_ended() noexcept;
  static constexpr std::uint64_t joining = 1, orphaned = 2, one_child = 4;

  Run* run_;  // kept alive by the caller
  TaskInfo* owner_;
  Ref<ScopeState> parent_;
  const TimePoint ends_;
  std::atomic<bool> cancelled_{false};  // written with the run's mutex held
  std::atomic<std::uint64_t> state_{0};

  // Guarded by the run's mutex.
  ScopeState* previous_ = nullptr;
  ScopeState* next_ = nullptr;
  ScopeState* next_of_owner_ = nullptr;
  Wait* joiner_ = nullptr;
  std::size_t blocked_ = 0;  // children that wait for another task
  bool child_was_cancelled_ = false;
  Ref<ScopeState> kept_by_orphans_;  // to itself, while children live on without their scope
  std::exception_ptr first_error_;
  std::vector<std::exception_ptr> later_errors_;
};

}  // namespace millrace
