// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <millrace/streaming/audio/audio_config.h>
#include <millrace/streaming/audio/resampler.h>
#include <millrace/streaming/protocol/audio_format.h>
#include <millrace/streaming/protocol/row_source.h>

namespace millrace {

/// A session's audio: interleaved samples, cut anywhere, become rows f32[context + window]. Channels are averaged, the mean is resampled,
/// and windows are views into one buffer of samples. `end` flushes the resampler and pads the last window with zeros, so that every sample
/// stands in a row (but for those that a hop longer than the window skips). The same bits however the bytes were cut.
class AudioFrontEnd final : public RowSource {
 public:
  /// ArgumentError for a config or a format out of range.
  AudioFrontEnd(const AudioConfig& config, const AudioFormat& format, std::size_t capacity = default_row_capacity);

  DType dtype() const override { return DType::f32; }
  const DDim& row_dims() const override { return row_dims_; }
  std::size_t row_bytes() const override { return row_samples_ * sizeof(float); }
  std::size_t feed(std::span<const std::byte> bytes) override;
  void end() override;
  bool ended() const override { return ended_; }
  std::size_t rows() const override;
  std::span<const std::byte> row(std::size_t k) const override;
  void pop(std::size_t count) override;
  std::unique_ptr<RowSource> anew() const override { return std::make_unique<AudioFrontEnd>(config_, format_, capacity_); }
  /// UnsupportedError as Resampler::save.
  void save(std::string& to) const override;
  void load(std::string_view bytes) override;
  std::size_t held_bytes() const override { return (samples_.size() - std::min(begin_, samples_.size())) * sizeof(float); }

  const AudioFormat& format() const noexcept { return format_; }
  /// Samples at the config's rate so far, without padding. After `end`: all of them.
  std::uint64_t samples() const noexcept { return total_; }
  double seconds() const noexcept { return static_cast<double>(total_) / config_.rate; }

 private:
  void take_frames(std::span<const std::byte> bytes);
  void compact();

  AudioConfig config_;
  AudioFormat format_;
  std::size_t row_samples_;
  std::size_t window_;
  std::size_t hop_;
  std::size_t capacity_;
  DDim row_dims_;
  Resampler resampler_;
  std::array<std::byte, 32> partial_{};  // a frame of samples that was cut
  std::size_t partial_size_ = 0;
  std::vector<float> mono_;     // scratch
  std::vector<float> samples_;  // starts with the context of zeros
  std::size_t begin_ = 0;       // of the oldest row in samples_; past its end while a long hop skips samples
  std::uint64_t total_ = 0;
  std::uint64_t popped_ = 0;  // rows
  bool ended_ = false;
};

}  // namespace millrace
