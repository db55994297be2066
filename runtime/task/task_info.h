// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/frame_pool.h>

namespace millrace {

class CancellationToken;
class Run;
class ScopeState;
class Tracer;
class Wait;

/// One spawned task: what all coroutine frames that await one another inside it share. At any time one of them runs, or
/// the task waits for one thing. It lives from `spawn` until its body, and every child it left behind, has ended;
/// a holder of a `TaskInfo*` (a slot its writers) must let go of it before. Thread safety: the const members may be
/// called from any thread while the task lives.
class TaskInfo : public Runnable, public InFramePool {
 public:
  const std::string& name() const noexcept;
  Executor& executor() const noexcept { return *executor_; }
  Run& run() const noexcept { return *run_; }
  /// Null without a trace.
  Tracer* tracer() const noexcept;
  /// True once a scope around this task was cancelled: its next cancellable wait or checkpoint throws CancelledError.
  bool cancelled() const noexcept;
  /// CancelledError where this task is cancelled, or a deadline around it has passed: for work that computes, since a thread that computes fires
  /// no timer.
  void check_goes_on() const;
  CancellationToken token() const noexcept;

  /// Goes through the queue of the executor; then continues at `at`. For awaitables: nothing of the awaiting coroutine
  /// may be touched after this call.
  void post(std::coroutine_handle<> at) noexcept {
    resume_at_ = at;
    executor_->post(*this);
  }
  /// Where to continue when one coroutine of this task passes control to another: inline, but through the queue every
  /// 64th time, since symmetric transfer is no tail call on every compiler.
  std::coroutine_handle<> transfer(std::coroutine_handle<> to) noexcept {
    if (++depth_ < inline_transfers) return to;
    post(to);
    return std::noop_coroutine();
  }
  /// Called by the body's final suspension. The rest happens in `execute`, on a stack with no coroutine on it.
  void body_ended() noexcept { *ended_ = true; }

  void execute() noexcept final;

 protected:
  TaskInfo(Executor& executor, Run& run, ScopeState& scope, std::string&& name) noexcept
      : executor_(&executor), run_(&run), scope_(&scope), region_(&scope), name_(std::move(name)) {}
  virtual ~TaskInfo() = default;

  /// Called once, when body and orphans have ended: hands on the outcome and destroys the task. The calling thread
  /// holds one count of the run's activity and passes it on.
  virtual void complete() noexcept = 0;
  ScopeState& scope() const noexcept { return *scope_; }
  /// The first error of a child whose scope was destroyed before it was joined.
  std::exception_ptr take_orphan_error() noexcept { return std::exchange(orphan_error_, nullptr); }

 private:
  friend class DeadlineRegion;
  friend class Run;
  friend class ScopeState;
  friend class Wait;
  static constexpr unsigned inline_transfers = 64;

  /// One of body and orphaned scopes has ended. True when it was the last: then the task is gone.
  bool part_ended() noexcept {
    // Only the body itself adds parts, so with one left there is no other thread to agree with.
    if (parts_.load(std::memory_order_acquire) != 1 && parts_.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    complete();
    return true;
  }

  Executor* executor_;
  Run* run_;
  ScopeState* scope_;   // the scope that joins this task
  ScopeState* region_;  // whose cancellation this task obeys: its scope, or an inner region
  std::coroutine_handle<> resume_at_;
  bool* ended_ = nullptr;  // on the stack of the `execute` that runs now
  unsigned depth_ = 0;
  std::atomic<std::uint32_t> parts_{1};

  // Guarded by the run's mutex.
  Wait* wait_ = nullptr;               // what it waits for
  ScopeState* open_scopes_ = nullptr;  // that it owns
  std::uint64_t mark_ = 0;             // of the last search that met it
  std::exception_ptr orphan_error_;

  std::string name_;
};

}  // namespace millrace
