// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <millrace/streaming/audio/audio_config.h>

namespace millrace {

/// A span of time with a label, in seconds from the first sample.
struct Segment {
  std::string label;
  double start = 0;
  double end = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

/// Makes segments of one value a step. A segment opens at the first sample of a step whose value is ≥ enter. A value < leave marks a
/// possible end there; a value ≥ enter takes the mark back; the segment closes at the mark when a value < leave comes `min_off` or more
/// after it. Segments shorter than `min_on` are dropped; the others are padded, within the audio and without touching the one before. No
/// I/O; not thread-safe.
class Segmenter {
 public:
  /// ArgumentError for thresholds or times that LabelConfig forbids.
  Segmenter(const LabelConfig& config, double step_seconds);

  /// The next step is the one behind so many, whose values are not known.
  void begin_behind(std::uint64_t steps) noexcept { steps_ = steps; }
  /// The value of the next step; gives the segment that it closed.
  std::optional<Segment> step(double value);
  /// The audio ended after `seconds`; gives the segment that was open.
  std::optional<Segment> end(double seconds);

  /// Appends where the segmenter stands, from which the `load` of one with the same config goes on.
  void save(std::string& to) const;
  /// ParseError for bytes that no `save` appends.
  void load(std::string_view bytes);

 private:
  double seconds_at(std::uint64_t step) const noexcept { return static_cast<double>(step) * step_seconds_; }
  /// `steps`: from the start to the end; `end` and `audio_end` in seconds.
  std::optional<Segment> close(double steps, double end, double audio_end);

  LabelConfig config_;
  double step_seconds_;
  double least_on_ = 0;  ///< in steps, as `least_off_`
  double least_off_ = 0;
  std::uint64_t steps_ = 0;
  bool open_ = false;
  std::uint64_t start_ = 0;  ///< a step, as `mark_`
  std::optional<std::uint64_t> mark_;
  double last_end_ = 0;
};

}  // namespace millrace
