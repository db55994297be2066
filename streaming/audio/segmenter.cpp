// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/segmenter.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include <millrace/streaming/protocol/byte_reader.h>
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
  // Times are compared as numbers of steps: seconds are rounded, by more the later they are.
  constexpr double tolerance = 1e-6;
  least_on_ = config.min_on / step_seconds - tolerance;
  least_off_ = config.min_off / step_seconds - tolerance;
}

std::optional<Segment> Segmenter::step(double value) {
  const std::uint64_t now = steps_++;
  if (value >= config_.enter) {
    mark_.reset();
    if (!open_) start_ = now;
    open_ = true;
  } else if (open_ && value < config_.leave) {
    if (!mark_) mark_ = now;
    if (static_cast<double>(now - *mark_) >= least_off_) {
      const double steps = static_cast<double>(*mark_ - start_);
      return close(steps, seconds_at(*mark_), seconds_at(now) + step_seconds_);
    }
  }
  return std::nullopt;
}

std::optional<Segment> Segmenter::end(double seconds) {
  if (!open_) return std::nullopt;
  return close(seconds / step_seconds_ - static_cast<double>(start_), seconds, seconds);
}

void Segmenter::save(std::string& to) const {
  append_little_endian(to, steps_);
  to += static_cast<char>((open_ ? 1 : 0) | (mark_ ? 2 : 0));
  for (const double value : {seconds_at(start_), seconds_at(mark_.value_or(0)), last_end_})
    append_little_endian(to, std::bit_cast<std::uint64_t>(value));
}

void Segmenter::load(std::string_view bytes) {
  const std::string place = "label '" + config_.name + "'";
  ByteReader reader(place, bytes);
  steps_ = reader.number<std::uint64_t>();
  const auto flags = reader.number<std::uint8_t>();
  const auto step_at = [&] {
    const double step = std::round(std::bit_cast<double>(reader.number<std::uint64_t>()) / step_seconds_);
    if (!(step >= 0 && step <= static_cast<double>(steps_)))
      throw ParseError(place + ": expected a step among those before, found another");
    return static_cast<std::uint64_t>(step);
  };
  open_ = (flags & 1) != 0;
  start_ = step_at();
  mark_ = step_at();
  if ((flags & 2) == 0) mark_.reset();
  last_end_ = std::bit_cast<double>(reader.number<std::uint64_t>());
  reader.end();
}

std::optional<Segment> Segmenter::close(double steps, double end, double audio_end) {
  open_ = false;
  mark_.reset();
  if (steps < least_on_) return std::nullopt;
  Segment segment;
  segment.label = config_.name;
  segment.start = std::max(last_end_, seconds_at(start_) - config_.pad);
  segment.end = std::min(end + config_.pad, audio_end);
  last_end_ = segment.end;
  return segment;
}

}  // namespace millrace
