// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/deadline.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

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
    when_ = executor.after(after);
    executor.add_timer(*this, when_);
  }
  void end(Executor& executor) noexcept {
    if (executor.cancel_timer(*this)) kept_by_executor_ = Ref<State>();
  }
  /// Work that looks at the clock by itself may end before the timer fires.
  bool passed(TimePoint now) const noexcept { return passed_.load(std::memory_order_acquire) || now >= when_; }

 private:
  void fire() noexcept override {
    const Ref<State> self = std::move(kept_by_executor_);
    passed_.store(true, std::memory_order_release);
    cancellation_.cancel();
  }

  CancellationSource cancellation_;
  std::atomic<bool> passed_{false};
  TimePoint when_{};
  Ref<State> kept_by_executor_;
};

Deadline::Deadline(Executor& executor, Duration after, CancellationSource cancellation)
    : executor_(executor), state_(new State(std::move(cancellation))) {
  state_->begin(executor, after);
}
Deadline::~Deadline() { state_->end(executor_); }
bool Deadline::passed() const noexcept { return state_->passed(executor_.now()); }

namespace {

/// In the largest unit of which it is a whole number: "200 ms".
std::string in_units(Duration duration) {
  constexpr std::array<std::pair<std::int64_t, const char*>, 3> units{{{1'000'000'000, " s"}, {1'000'000, " ms"}, {1'000, " us"}}};
  const std::int64_t count = std::chrono::nanoseconds(duration).count();
  for (const auto& [size, name] : units)
    if (count % size == 0) return std::to_string(count / size) + name;
  return std::to_string(count) + " ns";
}

}  // namespace

void throw_deadline(const TaskInfo& task, Duration after) {
  throw DeadlineError("task '" + task.name() + "' did not end within " + in_units(after));
}

}  // namespace millrace
