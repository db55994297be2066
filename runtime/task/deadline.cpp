// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/deadline.h>
#include <millrace/tensor/pool.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace millrace {

// Shared with the executor: the timer may be firing on another thread when the region is destroyed.
class DeadlineRegion::Alarm final : public RefCounted, public Timer, public Pooled {
 public:
  explicit Alarm(CancellationSource cancellation) noexcept : cancellation_(std::move(cancellation)) {}
  void begin(Executor& executor, TimePoint when) {
    kept_by_executor_ = Ref<Alarm>(this);
    executor.add_timer(*this, when);
  }
  void end(Executor& executor) noexcept {
    if (executor.cancel_timer(*this)) kept_by_executor_ = Ref<Alarm>();
  }
  bool fired() const noexcept { return fired_.load(std::memory_order_acquire); }

 private:
  void fire() noexcept override {
    const Ref<Alarm> self = std::move(kept_by_executor_);
    fired_.store(true, std::memory_order_release);
    cancellation_.cancel();
  }

  CancellationSource cancellation_;
  std::atomic<bool> fired_{false};
  Ref<Alarm> kept_by_executor_;
};

DeadlineRegion::DeadlineRegion(TaskInfo& task, Duration after) : task_(task), outer_(task.region_) {
  const TimePoint ends = task.executor().after(after);
  state_ = Ref<ScopeState>(new ScopeState(task.run(), nullptr, outer_, ends));
  alarm_ = Ref<Alarm>(new Alarm(CancellationSource(task.run(), *state_)));
  task.run().open(*state_);
  task.region_ = state_.get();
  alarm_->begin(task.executor(), ends);
}

DeadlineRegion::~DeadlineRegion() {
  alarm_->end(task_.executor());
  task_.region_ = outer_;
  std::lock_guard lock(task_.run().mutex_);
  task_.run().close(*state_);
}

// Work that looks at the clock by itself (`TaskInfo::check_goes_on`) may end before the timer fires.
bool DeadlineRegion::passed() const noexcept {
  const TimePoint now = task_.executor().now();
  return (alarm_->fired() || now >= state_->ends()) && !outer_->cancelled() && now < outer_->ends();
}

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
