// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/seeded_executor.h>

#include <algorithm>

namespace millrace {
namespace {

// The finalizer of splitmix64.
std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr std::uint64_t first_priority = 1ull << 32;  // changed priorities lie below, each lower than the one before

class Flag {
 public:
  explicit Flag(bool& flag) noexcept : flag_(flag), before_(flag) { flag = true; }
  ~Flag() { flag_ = before_; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
  bool before_;
};

}  // namespace

SeededExecutor::SeededExecutor(std::uint64_t seed, Policy policy) : random_(mix(seed)), policy_(policy), low_priority_(first_priority) {
  if (policy == Policy::pct) set_pct(3, 1000);
}

void SeededExecutor::remove_source(ChoiceSource& source) {
  std::erase_if(sources_, [&](const Source& s) { return s.source == &source; });
}

void SeededExecutor::set_pct(std::size_t changes, std::size_t decisions) {
  change_at_.clear();
  for (std::size_t i = 0; i < changes; ++i) change_at_.push_back(decisions_ + 1 + draw_below(decisions));
}

std::uint64_t SeededExecutor::draw() noexcept { return mix(random_ += 0x9e3779b97f4a7c15); }

void SeededExecutor::record(std::uint64_t value) noexcept { hash_ = mix(hash_ * 0x9e3779b97f4a7c15 + value + 1); }

void SeededExecutor::post(Runnable& runnable) noexcept {
  if (policy_ == Policy::pct && runnable.priority_ == 0) runnable.priority_ = first_priority + draw() / 2;
  ready_.push_back(&runnable);
}

std::size_t SeededExecutor::count_choices() {
  std::size_t count = ready_.size();
  offered_.clear();
  for (const Source& source : sources_) {
    offered_.push_back(source.source->choices());
    count += offered_.back();
  }
  return count;
}

std::size_t SeededExecutor::pick(std::size_t count) {
  switch (policy_) {
    case Policy::fifo: return 0;
    case Policy::random: return draw_below(count);
    case Policy::pct: break;
  }
  return pick_by_priority();
}

std::size_t SeededExecutor::pick_by_priority() {
  std::size_t best = 0;
  std::uint64_t* highest = nullptr;
  const auto consider = [&](std::uint64_t& priority, std::size_t index) {
    if (highest != nullptr && priority <= *highest) return;
    highest = &priority;
    best = index;
  };
  for (std::size_t i = 0; i < ready_.size(); ++i) consider(ready_[i]->priority_, i);
  std::size_t base = ready_.size();
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (sources_[s].priority == 0) sources_[s].priority = first_priority + draw() / 2;
    if (offered_[s] != 0) consider(sources_[s].priority, base + draw_below(offered_[s]));
    base += offered_[s];
  }
  if (std::find(change_at_.begin(), change_at_.end(), decisions_ + 1) != change_at_.end()) *highest = --low_priority_;
  return best;
}

void SeededExecutor::perform(std::size_t index) {
  if (index < ready_.size()) {
    Runnable* next = ready_[index];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(index));
    next->execute();
    return;
  }
  index -= ready_.size();
  std::size_t s = 0;
  for (; index >= offered_[s]; ++s) index -= offered_[s];
  sources_[s].source->take(index);
}

bool SeededExecutor::step() {
  const RuntimeThread thread(*this);
  const Flag flag(running_);
  const std::size_t count = count_choices();
  if (count == 0) return false;
  const std::size_t index = pick(count);
  ++decisions_;
  record(count);
  record(index);
  perform(index);
  return true;
}

std::size_t SeededExecutor::run() {
  const std::size_t before = decisions_;
  for (;;) {
    while (step()) {
    }
    if (!auto_advance_ || timers_.empty()) return decisions_ - before;
    now_ = std::max(now_, timers_.next());
    fire_due();
  }
}

std::size_t SeededExecutor::advance(Duration duration) {
  const std::size_t before = decisions_;
  const TimePoint until = now_ + duration;
  run();
  while (!timers_.empty() && timers_.next() <= until) {
    now_ = std::max(now_, timers_.next());
    fire_due();
    run();
  }
  now_ = std::max(now_, until);
  return decisions_ - before;
}

void SeededExecutor::fire_due() {
  const RuntimeThread thread(*this);
  const Flag flag(running_);
  while (Timer* due = timers_.pop_due(now_)) due->fire();
}

}  // namespace millrace
