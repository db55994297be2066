// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace millrace {

/// An object of this class says that work of a device is expected to complete within 50 µs. A thread without work that may be resumed by
/// it (such as a ThreadExecutor's) spins instead of sleeping meanwhile, since waking it takes longer. Thread-safe.
class AwaitedSoon {
 public:
  AwaitedSoon() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  ~AwaitedSoon() { count_.fetch_sub(1, std::memory_order_relaxed); }
  AwaitedSoon(const AwaitedSoon&) = delete;
  AwaitedSoon& operator=(const AwaitedSoon&) = delete;

  static bool any() noexcept { return count_.load(std::memory_order_relaxed) > 0; }

 private:
  inline static std::atomic<int> count_{0};
};

}  // namespace millrace
