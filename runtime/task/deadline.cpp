// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/deadline.h>

#include <atomic>
#include <string>

namespace millrace {

CancelRegion::CancelRegion(TaskInfo& task) : task_(task), outer_(task.region_), state_(new ScopeState(task.run(), nullptr, outer_)) {
  task_.run().open(*state_);
  task_.region_ = state_.get();
}

CancelRegion::~CancelRegion() {
  task_.region_ = outer_;
  std::lock_guard lock(task_.run().mutex_);
  task_.run().close(*state_);
}

bool CancelRegion::outer_cancelled() const noexcept { return outer_->cancelled(); }

// Shared with the executor: the timer may be firing on another thread when the deadline is destroyed.
class Deadline::State final : public RefCounted, public Timer, public InFramePool {
 public:
  explicit State(CancellationSource cancellation) noexcept : cancellation_(std::move(cancellation)) {}
  void begin(Executor& executor, Duration after) {
    kept_by_executor_ = Ref<State>(this);
    executor.add_timer(*this, executor.after(after));
  }
  void end(Executor& executor) noexcept {
    if (executor.cancel_timer(*this)) kept_by_executor_ = Ref<State>();
  }
  bool passed() const noexcept { return passed_.load(std::memory_order_acquire); }

 private:
  void fire() noexcept override {
    const Ref<State> self = std::move(kept_by_executor_);
    passed_.store(true, std::memory_order_release);
    cancellation_.cancel();
  }

  CancellationSource cancellation_;
  std::atomic<bool> passed_{false};
  Ref<State> kept_by_executor_;
};

Deadline::Deadline(Executor& executor, Duration after, CancellationSource cancellation)
    : executor_(executor), state_(new State(std::move(cancellation))) {
  state_->begin(executor, after);
}
Deadline::~Deadline() { state_->end(executor_); }
bool Deadline::passed() const noexcept { return state_->passed(); }

void throw_deadline(const TaskInfo& task, Duration after) {
  throw DeadlineError("task '" + task.name() + "' did not end within " + std::to_string(after.count()) + " ns");
}

}  // namespace millrace
