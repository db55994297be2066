// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/segmenter.h>

#include <algorithm>
#include <bit>

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

void Segmenter::save(std::string& to) const {
  append_little_endian(to, steps_);
  to += static_cast<char>((open_ ? 1 : 0) | (mark_ ? 2 : 0));
  for (const double value : {start_, mark_.value_or(0), last_end_}) append_little_endian(to, std::bit_cast<std::uint64_t>(value));
}

void Segmenter::load(std::string_view bytes) {
  ByteReader reader("label '" + config_.name + "'", bytes);
  steps_ = reader.number<std::uint64_t>();
  const auto flags = reader.number<std::uint8_t>();
  open_ = (flags & 1) != 0;
  start_ = std::bit_cast<double>(reader.number<std::uint64_t>());
  mark_ = std::bit_cast<double>(reader.number<std::uint64_t>());
  if ((flags & 2) == 0) mark_.reset();
  last_end_ = std::bit_cast<double>(reader.number<std::uint64_t>());
  reader.end();
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
