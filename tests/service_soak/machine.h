// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include <millrace/runtime/task/executor.h>

namespace millrace::simulated {

/// The clock and the threads of the one machine that this program simulates. The program links its own std::chrono::steady_clock::now, timerfd_settime and
/// ThreadExecutor: Asio's timers, and threads that libraries make for themselves, do what the simulation decides. Not thread-safe: there is one thread.
class Machine {
 public:
  using Clock = std::chrono::steady_clock;

  /// Time begins anew, and no timer and no work is known.
  static void reset();
  static void advance(Clock::duration by);
  /// When the next timer is due.
  static std::optional<Clock::time_point> next_timer();

  /// Things that wait for a thread of their ThreadExecutor.
  static std::size_t waiting();
  /// Runs the one that has waited `index`-th longest.
  static void run(std::size_t index);
};

}  // namespace millrace::simulated
