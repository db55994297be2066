// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/audio_front_end.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <millrace/streaming/protocol/byte_reader.h>
#include <millrace/streaming/protocol/error_code.h>

namespace millrace {
namespace {

void check_range(const char* what, std::int64_t found, std::int64_t least, std::int64_t most) {
  if (found < least || found > most)
    throw ArgumentError(std::string("audio: expected ") + what + " from " + std::to_string(least) + " to " + std::to_string(most) +
                        ", found " + std::to_string(found));
}

AudioConfig checked(const AudioConfig& config) {
  constexpr std::int64_t longest = 1 << 20;
  check_range("a rate in Hz", config.rate, AudioFormat::min_rate, AudioFormat::max_rate);
  check_range("a window in samples", config.window, 1, longest);
  check_range("a hop in samples", config.hop, 1, longest);
  check_range("a context in samples", config.context, 0, longest);
  return config;
}

AudioFormat checked(const AudioFormat& format) {
  check_range("a rate in Hz", format.rate, AudioFormat::min_rate, AudioFormat::max_rate);
  check_range("channels", format.channels, 1, AudioFormat::max_channels);
  return format;
}

template <class Sample>
float sample_at(const std::byte* at) {
  Sample value;
  std::memcpy(&value, at, sizeof value);
  if constexpr (std::is_same_v<Sample, std::int16_t>)
    return static_cast<float>(value) / 32768.0f;
  else
    return value;
}

/// Appends the mean of the channels of each of `count` frames.
template <class Sample>
void append_means(std::vector<float>& means, const std::byte* frames, std::size_t count, std::size_t channels) {
  const std::size_t old = means.size();
  means.resize(old + count);
  float* const to = means.data() + old;
  if (channels == 1) {
    for (std::size_t i = 0; i < count; ++i) to[i] = sample_at<Sample>(frames + i * sizeof(Sample));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* frame = frames + i * channels * sizeof(Sample);
    float sum = sample_at<Sample>(frame);
    for (std::size_t c = 1; c < channels; ++c) sum += sample_at<Sample>(frame + c * sizeof(Sample));
    to[i] = sum / static_cast<float>(channels);
  }
}

}  // namespace

AudioFrontEnd::AudioFrontEnd(const AudioConfig& config, const AudioFormat& format, std::size_t capacity)
    : config_(checked(config)),
      format_(checked(format)),
      row_samples_(static_cast<std::size_t>(config.row_samples())),
      window_(static_cast<std::size_t>(config.window)),
      hop_(static_cast<std::size_t>(config.hop)),
      capacity_(std::max(capacity, row_samples_ * sizeof(float))),
      row_dims_{config.row_samples()},
      resampler_(format.rate, config.rate, config.quality),
      samples_(static_cast<std::size_t>(config.context), 0.0f) {}

std::size_t AudioFrontEnd::feed(std::span<const std::byte> bytes) {
  if (ended_) throw ProtocolError(ErrorCode::bad_input, "audio: expected no samples after the end");
  // Small bites, so that what a bite turns into is bounded whatever the ratio of the rates.
  constexpr std::size_t bite = 4096;
  compact();
  std::size_t taken = 0;
  while (taken < bytes.size() && (held_bytes() < capacity_ || rows() == 0)) {
    const auto piece = bytes.subspan(taken, std::min(bite, bytes.size() - taken));
    take_frames(piece);
    taken += piece.size();
  }
  return taken;
}

// Averages the channels of the whole frames in partial_ + bytes, and keeps the cut one.
void AudioFrontEnd::take_frames(std::span<const std::byte> bytes) {
  const std::size_t frame = format_.frame_bytes();
  mono_.clear();
  const auto take = [&](const std::byte* frames, std::size_t count) {
    const auto channels = static_cast<std::size_t>(format_.channels);
    format_.format == SampleFormat::f32 ? append_means<float>(mono_, frames, count, channels)
                                        : append_means<std::int16_t>(mono_, frames, count, channels);
  };
  std::size_t at = 0;
  if (partial_size_ > 0) {
    at = std::min(bytes.size(), frame - partial_size_);
    std::copy_n(bytes.begin(), at, partial_.begin() + static_cast<std::ptrdiff_t>(partial_size_));
    partial_size_ += at;
    if (partial_size_ < frame) return;
    take(partial_.data(), 1);
  }
  const std::size_t whole = (bytes.size() - at) / frame;
  take(bytes.data() + at, whole);
  at += whole * frame;
  partial_size_ = bytes.size() - at;
  std::copy_n(bytes.data() + at, partial_size_, partial_.begin());
  const std::size_t before = samples_.size();
  resampler_.feed(mono_, samples_);
  total_ += samples_.size() - before;
}

void AudioFrontEnd::end() {
  if (ended_) return;
  if (partial_size_ > 0)
    throw ProtocolError(ErrorCode::bad_input, "audio: expected whole samples of " + std::to_string(format_.frame_bytes()) +
                                                  " bytes (all channels), found " + std::to_string(partial_size_) +
                                                  " bytes of one at the end");
  const std::size_t before = samples_.size();
  resampler_.end(samples_);
  total_ += samples_.size() - before;
  ended_ = true;
  // Rows are counted from the samples that came; the padding only gives the last one its full length.
  if (const std::size_t count = rows(); count > 0)
    samples_.resize(std::max(samples_.size(), begin_ + (count - 1) * hop_ + row_samples_), 0.0f);
}

// Row k needs samples [k·hop, k·hop + window), or at the end any of them, unless an earlier row had the last sample.
std::size_t AudioFrontEnd::rows() const {
  const std::uint64_t next = popped_ * hop_;
  if (total_ <= next) return 0;
  std::uint64_t all = total_ < window_ ? 0 : (total_ - window_) / hop_ + 1;
  if (ended_) {
    all = total_ <= window_ ? 1 : (total_ - window_ + hop_ - 1) / hop_ + 1;
    if ((all - 1) * hop_ >= total_) --all;  // a hop longer than the window went past the last sample
  }
  return static_cast<std::size_t>(all - std::min(all, popped_));
}

std::span<const std::byte> AudioFrontEnd::row(std::size_t k) const {
  if (k >= rows()) throw IndexError("audio: row " + std::to_string(k) + " of " + std::to_string(rows()));
  return std::as_bytes(std::span<const float>(samples_.data() + begin_ + k * hop_, row_samples_));
}

void AudioFrontEnd::pop(std::size_t count) {
  if (count > rows()) throw IndexError("audio: dropping " + std::to_string(count) + " of " + std::to_string(rows()) + " rows");
  begin_ += count * hop_;  // may pass the last sample while a hop is longer than the window
  popped_ += count;
}

// Samples before the oldest row are gone for good, so that what is saved does not grow with the session.
void AudioFrontEnd::save(std::string& to) const {
  std::string resampler;
  resampler_.save(resampler);
  append_little_endian(to, static_cast<std::uint32_t>(format_.rate));
  to += static_cast<char>(format_.format == SampleFormat::f32);
  to += static_cast<char>(format_.channels);
  append_little_endian(to, total_);
  append_little_endian(to, popped_);
  const std::size_t gone = std::min(begin_, samples_.size());
  append_little_endian(to, static_cast<std::uint64_t>(begin_ - gone));
  to += static_cast<char>(partial_size_);
  to.append(reinterpret_cast<const char*>(partial_.data()), partial_size_);
  if (format_.rate != config_.rate) {
    append_little_endian(to, static_cast<std::uint32_t>(resampler.size()));
    to += resampler;
  }
  to.append(reinterpret_cast<const char*>(samples_.data() + gone), held_bytes());
}

void AudioFrontEnd::load(std::string_view bytes) {
  ByteReader reader("audio", bytes);
  const auto rate = reader.number<std::uint32_t>();
  const bool floats = reader.number<std::uint8_t>() != 0;
  const int channels = reader.number<std::uint8_t>();
  if (std::cmp_not_equal(rate, format_.rate) || channels != format_.channels || floats != (format_.format == SampleFormat::f32))
    throw ParseError("audio: expected samples as they were when the session was saved (" + std::string(floats ? "f32" : "s16") + ", " +
                     std::to_string(rate) + " Hz, " + std::to_string(channels) + " channels), found " +
                     std::string(name_of(format_.format)) + ", " + std::to_string(format_.rate) + " Hz, " +
                     std::to_string(format_.channels) + " channels");
  total_ = reader.number<std::uint64_t>();
  popped_ = reader.number<std::uint64_t>();
  begin_ = reader.number<std::uint64_t>();
  const std::size_t cut = reader.number<std::uint8_t>();
  if (cut >= format_.frame_bytes()) throw ParseError("audio: expected a part of a sample, found a whole one");
  std::ranges::copy(reader.take(cut), partial_.begin());
  partial_size_ = cut;
  if (format_.rate != config_.rate) resampler_.load(reader.text(reader.number<std::uint32_t>()));
  const std::size_t held = reader.left();
  if (held % sizeof(float) != 0 || held > capacity_ + row_bytes())
    throw ParseError("audio: expected whole samples of at most " + std::to_string(capacity_ + row_bytes()) + " bytes, found " +
                     std::to_string(held) + " bytes");
  samples_.resize(held / sizeof(float));
  if (held > 0) std::memcpy(samples_.data(), reader.take(held).data(), held);
}

void AudioFrontEnd::compact() {
  const std::size_t gone = std::min(begin_, samples_.size());
  if (gone < samples_.size() - gone) return;
  samples_.erase(samples_.begin(), samples_.begin() + static_cast<std::ptrdiff_t>(gone));
  begin_ -= gone;
}

}  // namespace millrace
