// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace millrace {

/// Decides whether one more session may start, by the steps a second that a server holds. A session counts for its rate until a second or two have shown its
/// load. Sessions with a smaller load leave room; sessions that send as fast as they can count for their rate. No I/O, no clock of its own; not thread-safe.
///
///     load = min(sessions × rate, steps a second as measured + young sessions × rate)          refused where load + rate > capacity
///
/// Models that share a machine have an Admission each: the need of others is taken off the capacity.
class Admission {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Options {
    double capacity = 0;        ///< steps a second; 0: not known, and nobody is refused
    double session_rate = 0;    ///< steps a second of one session; 0: likewise
    bool by_transport = false;  ///< what the thread of the sockets has cost a step, as measured, may lower the capacity

    Options() = default;
  };

  struct Refusal {
    std::string why;
    std::uint32_t retry_after_ms = 0;  ///< from 1 to 3 s, spread, so that those who were refused together do not come back together
  };

  explicit Admission(Options options, TimePoint now = {}) : options_(options), begun_(now) {}

  /// The progress of the server: steps answered, and processor seconds of the thread of the sockets. To be told whenever something arrived.
  void observe(TimePoint now, std::uint64_t steps, double transport_seconds);
  /// Whether the next call of `observe` needs its numbers: they cost something.
  bool due(TimePoint now) const noexcept { return now - begun_ >= window; }

  /// Whether `refuse` would give a refusal.
  bool full(std::size_t sessions, double others = 0) const noexcept;
  /// Nothing: it may start, `started` is to follow. `sessions`: those that live. `others`: the part of the machine, 0 … 1, that sessions of other models
  /// are taken to need.
  std::optional<Refusal> refuse(std::size_t sessions, double others = 0);
  void started() noexcept { ++young_now_; }

  /// As `observe` was told last.
  std::uint64_t steps() const noexcept { return steps_; }
  /// Steps a second that are held, as far as is known; 0: nothing is.
  double capacity() const noexcept;
  /// Steps a second that `sessions` are taken to ask for.
  double load(std::size_t sessions) const noexcept;
  /// The part of the machine that they need: load / capacity; 0 where the capacity is not known.
  double share(std::size_t sessions) const noexcept { return capacity() > 0 ? load(sessions) / capacity() : 0; }

 private:
  static constexpr std::chrono::milliseconds window{1000};

  Options options_;
  TimePoint begun_;  // of the window that is measured
  std::uint64_t steps_ = 0;
  double transport_seconds_ = 0;
  double rate_ = 0;             // of the last window that is over
  double transport_cost_ = 0;   // seconds a step; 0: not known
  std::size_t young_now_ = 0;   // started in this window
  std::size_t young_last_ = 0;  // and in the last
  std::uint32_t refused_ = 0;
};

}  // namespace millrace
