// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/segmenter.h>

#include <algorithm>

#include <millrace/tensor/error.h>

namespace millrace {

Segmenter::Segmenter(const LabelConfig& config, double step_seconds) : config_(config), step_seconds_(step_seconds) {
  const auto check = [&](bool good, const char* expected) {
    if (!good) throw ArgumentError("label '" + config_.name + "': expected " + expected);
  };
  check(config.leave <= config.enter, "leave at most enter");
  check(config.min_on >= 0 && config.min_off >= 0 && config.pad >= 0, "times from 0 up");
  check(config.pad <= config.min_off, "pad at most min_off");
  check(step_seconds > 0, "a step longer than 0 s");
}

std::optional<Segment> Segmenter::step(double value) {
  const double now = static_cast<double>(steps_++) * step_seconds_;
  if (value >= config_.enter) {
    mark_.reset();
    if (!open_) start_ = now;
    open_ = true;
  } else if (open_ && value < config_.leave) {
    if (!mark_) mark_ = now;
    if (now - *mark_ >= config_.min_off) return close(*mark_, now + step_seconds_);
  }
  return std::nullopt;
}

std::optional<Segment> Segmenter::end(double seconds) {
  if (!open_) return std::nullopt;
  return close(seconds, seconds);
}

std::optional<Segment> Segmenter::close(double end, double audio_end) {
  open_ = false;
  mark_.reset();
  if (end - start_ < config_.min_on) return std::nullopt;
  Segment segment;
  segment.label = config_.name;
  segment.start = std::max(last_end_, start_ - config_.pad);
  segment.end = std::min(end + config_.pad, audio_end);
  last_end_ = segment.end;
  return segment;
}

}  // namespace millrace
