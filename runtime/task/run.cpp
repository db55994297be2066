// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/run.h>

#include <algorithm>
#include <new>
#include <utility>

#include <millrace/runtime/task/cancellation.h>
#include <millrace/runtime/task/errors.h>

namespace millrace {
namespace {

template <class F>
class Visiting final : public WriterVisitor {
 public:
  explicit Visiting(F f) noexcept : f_(f) {}
  void visit(TaskInfo& writer) noexcept override { f_(writer); }

 private:
  const F f_;
};

}  // namespace

std::exception_ptr make_cancelled_error(const TaskInfo& task) noexcept {
  try {
    return std::make_exception_ptr(CancelledError("task '" + task.name() + "' was cancelled"));
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(CancelledError("cancelled"));  // few letters are stored inline
  }
}

// ---- TaskInfo -------------------------------------------------------------------------------------------------------

const std::string& TaskInfo::name() const noexcept {
  const TaskInfo* task = this;
  while (task->name_.empty() && task->scope_->owner_ != nullptr) task = task->scope_->owner_;
  return task->name_;
}

Tracer* TaskInfo::tracer() const noexcept { return run_->tracer(); }
bool TaskInfo::cancelled() const noexcept { return region_->cancelled(); }
void TaskInfo::check_goes_on() const {
  const bool too_late = region_->ends() != TimePoint::max() && executor_->now() >= region_->ends();
  if (cancelled() || too_late) std::rethrow_exception(make_cancelled_error(*this));
}
CancellationToken TaskInfo::token() const noexcept { return CancellationToken(Ref<ScopeState>(region_)); }

void TaskInfo::execute() noexcept {
  bool ended = false;
  ended_ = &ended;
  depth_ = 0;
  resume_at_.resume();
  // Unless the body has ended, the task may already run on another thread, or be gone.
  if (!ended) return;
  Run& run = *run_;
  if (!part_ended()) run.leave();
}

// ---- Wait -----------------------------------------------------------------------------------------------------------

bool Wait::suspend(TaskInfo& task, std::coroutine_handle<> at) noexcept {
  task_ = &task;
  task.resume_at_ = at;
  return task.run().suspend(*this);
}

void Wait::wake(std::exception_ptr error) noexcept { task_->run().wake(*this, std::move(error)); }

// ---- ScopeState -----------------------------------------------------------------------------------------------------

Ref<ScopeState> ScopeState::open_in(TaskInfo& owner, bool inherits_cancellation) {
  Ref<ScopeState> state(new ScopeState(owner.run(), &owner, inherits_cancellation ? owner.region_ : nullptr));
  owner.run().open(*state);
  return state;
}

void ScopeState::cancel() noexcept { run_->cancel(*this); }

void ScopeState::child_begins() noexcept {
  state_.fetch_add(one_child, std::memory_order_relaxed);
  run_->enter();
}

void ScopeState::child_ended(std::exception_ptr error) noexcept {
  Run& run = *run_;
  if (error != nullptr) record(std::move(error));
  const std::uint64_t before = state_.fetch_sub(one_child, std::memory_order_acq_rel);
  // Unless this was the last child and somebody waits for it, the scope may be gone from here on.
  if (before / one_child == 1 && (before & joining) != 0) {
    run.wake_joiner(*this);
  } else if (before / one_child == 1 && (before & orphaned) != 0) {
    TaskInfo& owner = *owner_;
    orphans_ended();
    if (!owner.part_ended()) run.leave();
  } else {
    run.leave();
  }
}

void ScopeState::record(std::exception_ptr error) noexcept {
  bool was_cancelled = false;
  if (cancelled()) {
    try {
      std::rethrow_exception(error);
    } catch (const CancelledError&) {
      was_cancelled = true;
    } catch (...) {
    }
  }
  bool first = false;
  {
    std::lock_guard lock(run_->mutex_);
    if (was_cancelled) {
      child_was_cancelled_ = true;
    } else {
      first = first_error_ == nullptr;
      if (first) {
        first_error_ = std::move(error);
      } else {
        try {
          later_errors_.push_back(std::move(error));
        } catch (const std::bad_alloc&) {
        }
      }
    }
  }
  if (first) cancel();
}

std::exception_ptr ScopeState::first_error() const noexcept { return first_error_; }

std::vector<std::exception_ptr> ScopeState::later_errors() const {
  std::lock_guard lock(run_->mutex_);
  return later_errors_;
}

void ScopeState::abandon(bool errors_thrown) noexcept {
  const Ref<ScopeState> self(this);
  if (errors_thrown) {
    std::lock_guard lock(run_->mutex_);
    first_error_ = nullptr;
    later_errors_.clear();
  }
  if (live() != 0) {
    cancel();
    self->kept_by_orphans_ = self;
    owner_->parts_.fetch_add(1, std::memory_order_relaxed);
    if (state_.fetch_or(orphaned, std::memory_order_acq_rel) / one_child != 0) return;
    owner_->parts_.fetch_sub(1, std::memory_order_relaxed);
  }
  orphans_ended();
}

void ScopeState::orphans_ended() noexcept {
  const Ref<ScopeState> last = std::move(kept_by_orphans_);
  std::lock_guard lock(run_->mutex_);
  if (owner_->orphan_error_ == nullptr) owner_->orphan_error_ = first_error_;
  run_->close(*this);
}

// ---- Run ------------------------------------------------------------------------------------------------------------

Run::Run(std::string name, Tracer* tracer) : name_(std::move(name)), tracer_(tracer), root_(new ScopeState(*this, nullptr, nullptr)) {
  open(*root_);
}
Run::~Run() = default;

void Run::leave() noexcept {
  // The last one must not touch the run after its count has dropped, unless it holds the mutex.
  std::size_t count = active_.load(std::memory_order_relaxed);
  while (count > 1) {
    if (active_.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) return;
  }
  Ref<Run> kept;
  RunnableQueue woken;
  {
    std::lock_guard lock(mutex_);
    if (active_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      kept = Ref<Run>::adopt(this);
      if (blocked_ != 0 && mark_all_stuck(true)) fail_marked(woken);
    }
  }
  post(woken);
}

bool Run::suspend(Wait& wait) noexcept {
  Ref<Run> kept;
  RunnableQueue woken;
  {
    std::unique_lock lock(mutex_);
    if (wait.kind_ != Wait::Kind::join && wait.task().cancelled()) {
      wait.error_ = make_cancelled_error(wait.task());
      return false;
    }
    const Wait::Armed armed = wait.arm();
    if (armed == Wait::Armed::ready) return false;
    link(wait);
    if (armed == Wait::Armed::start) {
      lock.unlock();
      wait.start();
      return true;
    }
    if (wait.blocks()) {
      const bool at_rest = active_.fetch_sub(1, std::memory_order_acq_rel) == 1;
      if (at_rest) kept = Ref<Run>::adopt(this);
      if (at_rest ? mark_all_stuck(true) : mark_closed_set_of(wait.task())) fail_marked(woken);
    }
  }
  post(woken);
  return true;
}

void Run::wake(Wait& wait, std::exception_ptr error) noexcept {
  TaskInfo& task = wait.task();
  {
    std::lock_guard lock(mutex_);
    unlink(wait);
    wait.error_ = std::move(error);
    if (wait.blocks()) enter();
  }
  task.executor_->post(task);
}

// The last child's count of activity passes to the task that joins.
void Run::wake_joiner(ScopeState& scope) noexcept {
  TaskInfo* task = nullptr;
  {
    std::lock_guard lock(mutex_);
    scope.state_.fetch_and(~ScopeState::joining, std::memory_order_relaxed);
    task = &scope.joiner_->task();
    unlink(*scope.joiner_);
  }
  task->executor_->post(*task);
}

void Run::cancel(ScopeState& region) noexcept {
  RunnableQueue woken;
  {
    std::lock_guard lock(mutex_);
    if (region.cancelled()) return;
    region.cancelled_.store(true, std::memory_order_release);
    for (ScopeState* scope = first_scope_; scope != nullptr; scope = scope->next_) {
      if (scope->parent_ && scope->parent_->cancelled()) scope->cancelled_.store(true, std::memory_order_release);
    }
    for (Wait* wait = first_wait_; wait != nullptr;) {
      Wait& candidate = *std::exchange(wait, wait->next_);
      if (candidate.task().cancelled()) take_back(candidate, make_cancelled_error(candidate.task()), woken);
    }
  }
  post(woken);
}

void Run::recheck() noexcept {
  RunnableQueue woken;
  {
    std::lock_guard lock(mutex_);
    if (mark_all_stuck(activity() == 0)) fail_marked(woken);
  }
  post(woken);
}

std::vector<std::string> Run::waits() const {
  std::vector<std::string> lines;
  std::lock_guard lock(mutex_);
  for (const Wait* wait = first_wait_; wait != nullptr; wait = wait->next_) {
    lines.push_back("task '" + wait->task().name() + "' waits for " + wait->describe());
  }
  return lines;
}

void Run::open(ScopeState& scope) noexcept {
  std::lock_guard lock(mutex_);
  if (scope.parent_ && scope.parent_->cancelled()) scope.cancelled_.store(true, std::memory_order_release);
  scope.previous_ = last_scope_;
  (last_scope_ == nullptr ? first_scope_ : last_scope_->next_) = &scope;
  last_scope_ = &scope;
  if (scope.owner_ == nullptr) return;
  scope.next_of_owner_ = scope.owner_->open_scopes_;
  scope.owner_->open_scopes_ = &scope;
}

void Run::close(ScopeState& scope) noexcept {
  (scope.previous_ == nullptr ? first_scope_ : scope.previous_->next_) = scope.next_;
  (scope.next_ == nullptr ? last_scope_ : scope.next_->previous_) = scope.previous_;
  if (scope.owner_ == nullptr) return;
  ScopeState** at = &scope.owner_->open_scopes_;
  while (*at != &scope) at = &(*at)->next_of_owner_;
  *at = scope.next_of_owner_;
}

void Run::link(Wait& wait) noexcept {
  wait.previous_ = last_wait_;
  (last_wait_ == nullptr ? first_wait_ : last_wait_->next_) = &wait;
  last_wait_ = &wait;
  wait.task().wait_ = &wait;
  if (!wait.blocks()) return;
  ++blocked_;
  ++wait.task().scope_->blocked_;
}

void Run::unlink(Wait& wait) noexcept {
  (wait.previous_ == nullptr ? first_wait_ : wait.previous_->next_) = wait.next_;
  (wait.next_ == nullptr ? last_wait_ : wait.next_->previous_) = wait.previous_;
  wait.previous_ = wait.next_ = nullptr;
  wait.task().wait_ = nullptr;
  if (!wait.blocks()) return;
  --blocked_;
  --wait.task().scope_->blocked_;
}

// Ends a wait with an error, unless it is being woken already.
bool Run::take_back(Wait& wait, const std::exception_ptr& error, RunnableQueue& woken) noexcept {
  if (!wait.disarm()) return false;
  unlink(wait);
  wait.error_ = error;
  if (wait.blocks()) enter();
  woken.push(wait.task());
  return true;
}

void Run::post(RunnableQueue woken) noexcept {
  while (Runnable* next = woken.pop()) {
    TaskInfo& task = static_cast<TaskInfo&>(*next);
    task.executor_->post(task);
  }
}

// ---- The search for tasks that would wait for ever ------------------------------------------------------------------

bool Run::blocked(const TaskInfo& task) const noexcept { return task.wait_ != nullptr && task.wait_->blocks(); }

// The least set that holds `task` and all that it needs. It is closed unless it holds a task that does not wait for
// another: mostly the first one met.
bool Run::mark_closed_set_of(TaskInfo& task) noexcept {
  ++epoch_;
  task.mark_ = epoch_;
  RunnableQueue open;  // blocked tasks are in no queue of an executor
  open.push(task);
  while (Runnable* const next = open.pop())
    if (!mark_what_it_needs(static_cast<TaskInfo&>(*next), open)) return false;
  return true;
}

// Marks the writers and the live children of a blocked task. False when one of them, in this run or another, may still
// go on.
bool Run::mark_what_it_needs(TaskInfo& task, RunnableQueue& open) noexcept {
  const auto mark = [&](TaskInfo& needed) {
    if (needed.mark_ == epoch_) return;
    needed.mark_ = epoch_;
    open.push(needed);
  };
  if (task.wait_->fed_from_outside()) return false;
  bool known = false, all_blocked = true;
  Visiting visitor([&](TaskInfo& writer) {
    known = true;
    all_blocked = all_blocked && writer.run_ == this && blocked(writer);
    if (all_blocked) mark(writer);
  });
  task.wait_->writers(visitor);
  if (!all_blocked || (!known && task.wait_->kind_ == Wait::Kind::blocker)) return false;
  for (ScopeState* scope = task.open_scopes_; scope != nullptr; scope = scope->next_of_owner_) {
    if (scope->live() != scope->blocked_) return false;
    if (scope->blocked_ == 0) continue;
    for (Wait* wait = first_wait_; wait != nullptr; wait = wait->next_) {
      if (wait->blocks() && wait->task().scope_ == scope) mark(wait->task());
    }
  }
  return true;
}

// The greatest set of blocked tasks each of which needs only tasks of the set. `at_rest`: nothing can run, so a wait
// without known writers belongs to it.
bool Run::mark_all_stuck(bool at_rest) noexcept {
  ++epoch_;
  std::size_t members = 0;
  for (Wait* wait = first_wait_; wait != nullptr; wait = wait->next_) {
    if (!wait->blocks()) continue;
    wait->task().mark_ = epoch_;
    ++members;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (Wait* wait = first_wait_; wait != nullptr; wait = wait->next_) {
      TaskInfo& task = wait->task();
      if (!wait->blocks() || task.mark_ != epoch_ || is_stuck(task, at_rest)) continue;
      task.mark_ = 0;
      --members;
      changed = true;
    }
  }
  return members != 0;
}

bool Run::is_stuck(TaskInfo& task, bool at_rest) noexcept {
  if (task.wait_->fed_from_outside()) return false;
  bool known = false, all_stuck = true;
  Visiting visitor([&](TaskInfo& writer) {
    known = true;
    all_stuck = all_stuck && writer.run_ == this && writer.mark_ == epoch_;
  });
  task.wait_->writers(visitor);
  if (!known && task.wait_->kind_ == Wait::Kind::blocker && !at_rest) return false;
  if (!all_stuck) return false;
  for (ScopeState* scope = task.open_scopes_; scope != nullptr; scope = scope->next_of_owner_) {
    if (scope->live() != scope->blocked_) return false;
    if (scope->blocked_ == 0) continue;
    for (Wait* wait = first_wait_; wait != nullptr; wait = wait->next_) {
      if (wait->blocks() && wait->task().scope_ == scope && wait->task().mark_ != epoch_) return false;
    }
  }
  return true;
}

void Run::fail_marked(RunnableQueue& woken) noexcept {
  std::exception_ptr error;
  try {
    error = std::make_exception_ptr(deadlock_of_marked());
  } catch (const std::bad_alloc&) {
    error = std::make_exception_ptr(DeadlockError("deadlock", {}));
  }
  for (Wait* wait = first_wait_; wait != nullptr;) {
    Wait& marked = *std::exchange(wait, wait->next_);
    if (marked.blocks() && marked.task().mark_ == epoch_) take_back(marked, error, woken);
  }
}

DeadlockError Run::deadlock_of_marked() const {
  constexpr std::size_t named = 16;
  std::vector<DeadlockError::Waiter> waiters;
  std::vector<std::size_t> direct;
  std::vector<std::size_t> indirect;
  for (const Wait* wait = first_wait_; wait != nullptr; wait = wait->next_) {
    if (!wait->blocks() || wait->task().mark_ != epoch_) continue;
    (wait->indirect() ? indirect : direct).push_back(waiters.size());
    waiters.push_back({wait->task().name(), wait->describe()});
  }
  direct.insert(direct.end(), indirect.begin(), indirect.end());
  std::string what = "deadlock in run '" + name_ + "': nobody can go on";
  for (std::size_t i = 0; i < direct.size() && i < named; ++i)
    what += "; task '" + waiters[direct[i]].task + "' waits for " + waiters[direct[i]].awaited;
  if (waiters.size() > named) what += "; and " + std::to_string(waiters.size() - named) + " more";
  return {what, std::move(waiters)};
}

}  // namespace millrace
