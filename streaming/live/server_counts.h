// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include <millrace/streaming/protocol/error_code.h>

namespace millrace {

/// The numbers of values that were at most each of up to 16 ascending bounds. `observe` neither allocates nor locks. Not thread-safe.
class Histogram {
 public:
  static constexpr std::size_t most_bounds = 16;

  explicit Histogram(std::initializer_list<double> bounds);
  void observe(double value) noexcept;

  std::span<const double> bounds() const noexcept { return {bounds_.data(), size_}; }
  /// One more than bounds: values at most bound i and above the one before it; the last are those above all.
  std::span<const std::uint64_t> counts() const noexcept { return {counts_.data(), size_ + 1}; }
  std::uint64_t count() const noexcept { return count_; }
  double sum() const noexcept { return sum_; }

 private:
  std::size_t size_ = 0;
  std::array<double, most_bounds> bounds_{};
  std::array<std::uint64_t, most_bounds + 1> counts_{};
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

/// Counts by how something ended: "ended", "gone", or the name of an ErrorCode.
class OutcomeCounts {
 public:
  static constexpr std::size_t codes = static_cast<std::size_t>(ErrorCode::unknown_model) + 1;  ///< behind the last ErrorCode
  static constexpr std::size_t size = codes + 2;

  void add(std::string_view outcome) noexcept { ++counts_[index_of(outcome)]; }
  std::uint64_t count(std::string_view outcome) const noexcept { return counts_[index_of(outcome)]; }
  static std::string_view name(std::size_t index);
  std::uint64_t at(std::size_t index) const { return counts_.at(index); }

 private:
  static std::size_t index_of(std::string_view outcome) noexcept;
  std::array<std::uint64_t, size> counts_{};
};

/// Counts of one model of a server since the server began.
struct ModelCounts {
  std::uint64_t sessions = 0;  ///< started
  OutcomeCounts ended;         ///< of them
  Histogram tick_rows{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  Histogram tick_seconds{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1};
  /// The time from a session that is ready to its tick: one number a tick, of the session that waited longest.
  Histogram queue_seconds{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5};
  /// The time from data to the replies that it brought about, in a session that had nothing waiting.
  Histogram response_seconds{0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};
};

/// Counts of a server since it began. Plain numbers of the one thread that serves: counting costs an addition.
struct ServerCounts {
  std::uint64_t connections = 0;        ///< accepted
  std::uint64_t failed_handshakes = 0;  ///< connections that broke, or spoke another protocol, before they could say `start`
  std::uint64_t refused_requests = 0;   ///< a token, an origin or a route that is not allowed
  std::uint64_t pages = 0;              ///< given to browsers
  OutcomeCounts refused;                ///< connections that were refused a session, or ended before their start
  std::uint64_t messages_in = 0, messages_out = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;  ///< of payloads
};

}  // namespace millrace
