// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

/// Records what happened when: iteration-tasks, ops, slots issued and ready, ticks, sessions. Everything holds a `Tracer*` that is null
/// when nobody traces, so that off costs a branch. Thread-safe. Times are of the steady clock, from the tracer's making.
class Tracer {
 public:
  using Clock = std::chrono::steady_clock;

  /// One event: a span, or an instant when `end == begin` and `instant`.
  struct Event {
    std::string category;  ///< "iteration", "op", "slot", "tick", "session", "run"
    std::string name;
    std::uint64_t track =
        0;  ///< events of one track lie in one row of the picture (in several where spans overlap): a loop, a stream, a session
    std::int64_t step = -1;  ///< turn or step; −1: none
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    bool instant = false;
  };

  Tracer() = default;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  std::int64_t now() const noexcept { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count(); }
  /// A row of the picture, under a name; the same for the same name.
  std::uint64_t add_track(const std::string& name);
  void span(std::string category, std::string name, std::uint64_t track, std::int64_t step, std::int64_t begin_ns);
  void instant(std::string category, std::string name, std::uint64_t track, std::int64_t step);

  std::vector<Event> events() const;
  /// Those of one category, in the order in which they ended.
  std::vector<Event> events(const std::string& category) const;
  /// Chrome's and Perfetto's JSON: spans as complete events, those of one thread beside or within each other.
  std::string to_json() const;
  /// The same into a file, whole or not at all. IoError names it.
  void save(const std::filesystem::path& path) const;

 private:
  const Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::vector<std::string> tracks_;
};

/// A span from construction to destruction; nothing when `tracer` is null.
class TraceSpan {
 public:
  TraceSpan(Tracer* tracer, const char* category, std::string_view name, std::uint64_t track, std::int64_t step = -1)
      : tracer_(tracer), category_(category), track_(track), step_(step) {
    if (tracer_ == nullptr) return;
    name_ = name;
    begin_ = tracer_->now();
  }
  ~TraceSpan() {
    if (tracer_ != nullptr) tracer_->span(category_, std::move(name_), track_, step_, begin_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  /// Nothing is recorded.
  void drop() noexcept { tracer_ = nullptr; }

 private:
  Tracer* tracer_;
  const char* category_;
  std::string name_;
  std::uint64_t track_;
  std::int64_t step_;
  std::int64_t begin_ = 0;
};

}  // namespace millrace
