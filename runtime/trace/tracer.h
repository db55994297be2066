// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

/// Where spans also go while they last: the timeline of a profiler. Thread-safe; a range may end on another thread than it began on.
class RangeSink {
 public:
  virtual ~RangeSink() = default;
  /// Begins a range, and gives its number for `end`, never 0.
  virtual std::uint64_t begin(const char* category, std::string_view name, std::int64_t step) = 0;
  virtual void end(std::uint64_t range) noexcept = 0;
  virtual void mark(const char* category, std::string_view name, std::int64_t step) = 0;
};

struct TracerOptions {
  /// Keeps events for `events` and `to_json`. Without it, loops run as in a run without a trace, and their ranges alone are seen.
  bool record = true;
  std::shared_ptr<RangeSink> ranges;  ///< such as `make_nvtx_ranges()`; null: none
  /// Where events go as they end, as `to_json` would write them, instead of being kept in memory; empty: nowhere. It appears with `finish`.
  std::filesystem::path file;
  /// Bytes of the file from which on events are counted and left out.
  std::uint64_t most_bytes = std::uint64_t{1} << 30;

  TracerOptions() = default;
};

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
    std::int64_t step = -1;  ///< iteration or step; −1: none
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    bool instant = false;
  };

  /// IoError for a `file` that cannot be written.
  explicit Tracer(TracerOptions options = {});
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  std::int64_t now() const noexcept { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count(); }
  /// Whether events are kept.
  bool records() const noexcept { return options_.record; }
  RangeSink* ranges() const noexcept { return options_.ranges.get(); }

  /// A row of the picture, under a name; the same for the same name.
  std::uint64_t add_track(const std::string& name);
  void span(std::string category, std::string name, std::uint64_t track, std::int64_t step, std::int64_t begin_ns);
  void instant(std::string category, std::string name, std::uint64_t track, std::int64_t step);

  std::vector<Event> events() const;
  /// The events of one category, in the order in which they ended.
  std::vector<Event> events(const std::string& category) const;
  /// Chrome's and Perfetto's JSON: spans as complete events, those of one thread beside or within each other.
  std::string to_json() const;
  /// Writes that JSON into a file, whole or not at all. IoError names it.
  void save(const std::filesystem::path& path) const;
  /// Ends the file of `TracerOptions::file`, at most once; nothing may be traced after it. Gives the number of events that were left out.
  /// IoError for a write that failed, ArgumentError without a file.
  std::uint64_t finish();

 private:
  class File;
  void keep(Event event);

  const TracerOptions options_;
  const Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;
  std::unique_ptr<File> file_;
  std::vector<Event> events_;
  std::vector<std::string> tracks_;
};

/// A span from construction to destruction; nothing when `tracer` is null.
class TraceSpan {
 public:
  TraceSpan(Tracer* tracer, const char* category, std::string_view name, std::uint64_t track, std::int64_t step = -1)
      : tracer_(tracer), category_(category), track_(track), step_(step) {
    if (tracer_ == nullptr) return;
    if (tracer_->ranges() != nullptr) range_ = tracer_->ranges()->begin(category, name, step);
    name_ = name;
    begin_ = tracer_->now();
  }
  ~TraceSpan() {
    end_range();
    if (tracer_ != nullptr) tracer_->span(category_, std::move(name_), track_, step_, begin_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  /// Nothing is recorded.
  void drop() noexcept {
    end_range();
    tracer_ = nullptr;
  }

 private:
  void end_range() noexcept {
    if (range_ != 0) tracer_->ranges()->end(range_);
    range_ = 0;
  }

  Tracer* tracer_;
  const char* category_;
  std::string name_;
  std::uint64_t track_;
  std::int64_t step_;
  std::int64_t begin_ = 0;
  std::uint64_t range_ = 0;
};

}  // namespace millrace
