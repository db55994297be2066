// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/runtime/task/executor.h>

namespace millrace {

/// Timers by (time, order of adding): an intrusive pairing heap; allocates nothing. Not thread-safe.
class TimerQueue {
 public:
  bool empty() const noexcept { return root_ == nullptr; }
  /// When the earliest timer fires. Not for an empty queue.
  TimePoint next() const noexcept { return root_->when_; }
  void add(Timer& timer, TimePoint when) noexcept;
  /// False when the timer is not in the queue.
  bool remove(Timer& timer) noexcept;
  /// Takes the earliest timer that is due at `now`, or null.
  Timer* pop_due(TimePoint now) noexcept;

 private:
  static Timer* merge(Timer* a, Timer* b) noexcept;
  static Timer* merge_siblings(Timer* first) noexcept;

  Timer* root_ = nullptr;
  std::uint64_t added_ = 0;
};

}  // namespace millrace
