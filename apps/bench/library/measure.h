// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace millrace::bench {

/// Calls what is measured for about so many seconds; gives the seconds that one call took.
using Timer = std::function<double(double seconds)>;

/// The time for which each row is measured. Iterations are short and many, so that the median is one that nothing else on the machine interrupted; where
/// one call takes longer than an iteration, there are fewer.
struct Effort {
  int iterations = 41;
  int least_iterations = 7;
  double seconds = 0.005;  ///< of one iteration of one side
  double most = 2;         ///< seconds after which `least_iterations` are enough
  /// Between the iterations of two sides: threads of the one that has ended still spin for some milliseconds, on the core of the other.
  double rest = 0.015;
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The clock of timers. Other load moves the wall's; the processor time of all threads of a process hides waiting, and counts spinning.
enum class TimerClock { wall, processor };

/// Of this process; chosen once, before anything is measured.
inline TimerClock& timer_clock() {
  static TimerClock clock = TimerClock::wall;
  return clock;
}

/// Seconds of the processor that all threads of this process have used.
inline double processor_seconds() {
  std::timespec passed{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &passed);
  return static_cast<double>(passed.tv_sec) + 1e-9 * static_cast<double>(passed.tv_nsec);
}

/// Seconds on the clock of timers, from an unnamed start.
inline double timer_seconds() {
  if (timer_clock() == TimerClock::processor) return processor_seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Of a function that does the work once.
template <class Call>
Timer timer_of(Call call) {
  return [call](double seconds) mutable {
    call();
    const double start = timer_seconds();
    std::int64_t calls = 0;
    double passed = 0;
    for (; passed < seconds; passed = timer_seconds() - start, ++calls) call();
    return passed / static_cast<double>(calls);
  };
}

inline double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

/// Medians of both, measured by turns: ours, peer, ours, …, ours. An empty `peer`: {ours, 0}.
inline std::pair<double, double> by_iterations(const Timer& ours, const Timer& peer, const Effort& effort) {
  std::vector<double> of_ours, of_peer;
  const auto iteration_of = [&](const Timer& side) {
    if (peer) std::this_thread::sleep_for(std::chrono::duration<double>(effort.rest));
    return side(effort.seconds);
  };
  const auto start = std::chrono::steady_clock::now();
  ours(effort.seconds / 4);
  if (peer) peer(effort.seconds / 4);
  for (int iteration = 0; iteration < effort.iterations && (iteration < effort.least_iterations || seconds_since(start) < effort.most);
       ++iteration) {
    of_ours.push_back(iteration_of(ours));
    if (peer) of_peer.push_back(iteration_of(peer));
  }
  of_ours.push_back(iteration_of(ours));
  return {median(std::move(of_ours)), of_peer.empty() ? 0.0 : median(std::move(of_peer))};
}

}  // namespace millrace::bench
