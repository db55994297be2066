// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>

namespace millrace {

/// A second thread that does half of each of many pieces of work, too small to wake a thread for: both threads spin in between, so half a
/// microsecond is worth sharing. One thread *owns* it and calls `both` and, at the end, `release`; one other may `serve`. Neither waits for
/// the other to come: without a second thread the owner does all of it, and so it does once the other was late, being pushed off its core.
class SpinHelper {
 public:
  SpinHelper() = default;
  SpinHelper(const SpinHelper&) = delete;
  SpinHelper& operator=(const SpinHelper&) = delete;

  /// Calls f(part, parts) for all parts, two of them if a helper serves, else one; returns when all are done. `f` must not throw.
  template <class F>
  void both(F&& f) {
    if (late_ || !here_.load(std::memory_order_acquire)) return f(0, 1);
    using Callable = std::remove_reference_t<F>;
    body_ = [](void* callable) { (*static_cast<Callable*>(callable))(1, 2); };
    callable_ = const_cast<void*>(static_cast<const void*>(std::addressof(f)));
    given_.store(++count_, std::memory_order_release);
    f(0, 2);
    int idle = 0;
    while (done_.load(std::memory_order_acquire) != count_) pause(idle);
    late_ = idle > spins;
  }
  /// The owner needs no help any more: the helper leaves.
  void release() noexcept { over_.store(true, std::memory_order_release); }

  /// Does its part of everything until `release`.
  void serve() {
    here_.store(true, std::memory_order_release);
    std::uint64_t seen = 0;
    for (int idle = 0;;) {
      if (given_.load(std::memory_order_acquire) != seen) {
        body_(callable_);
        done_.store(++seen, std::memory_order_release);
        idle = 0;
      } else if (over_.load(std::memory_order_acquire)) {
        return;
      } else {
        pause(idle);
      }
    }
  }

 private:
  static constexpr int spins = 4000;

  /// A thread that waits long has been pushed off its core, or waits for one that has.
  static void pause(int& idle) {
    if (++idle > spins) return std::this_thread::yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  void (*body_)(void*) = nullptr;
  void* callable_ = nullptr;
  std::uint64_t count_ = 0;
  bool late_ = false;
  std::atomic<bool> here_ = false;
  std::atomic<bool> over_ = false;
  alignas(64) std::atomic<std::uint64_t> given_ = 0;
  alignas(64) std::atomic<std::uint64_t> done_ = 0;
};

}  // namespace millrace
