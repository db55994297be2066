// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/streaming/audio/audio_config.h>

namespace millrace {

class SampleConverter;

/// One channel from one rate to another through libsamplerate's sinc converter; equal rates pass through. The bits of the output do not
/// depend on how the input was cut. Not thread-safe. UnsupportedError without the part samplerate, when the rates differ.
class Resampler {
 public:
  /// ArgumentError for rates that are not positive or further apart than 1 : 256.
  Resampler(int from_rate, int to_rate, ResampleQuality quality);
  Resampler(Resampler&&) noexcept;
  Resampler& operator=(Resampler&&) noexcept;
  ~Resampler();

  /// Appends to `output` what can be computed so far. ArgumentError after `end`.
  void feed(std::span<const float> input, std::vector<float>& output);
  /// Appends the tail: nothing follows.
  void end(std::vector<float>& output);

  /// Appends at most `most_saved_bytes`, from which `load` goes on with the same bits: the samples that the filter still reaches. UnsupportedError where the
  /// filter reaches over too many samples, and where the converter's place between two samples cannot be found again: it is rounded at each step if the ratio of
  /// the rates needs another denominator than 1, 2, 4 … 64, such as 44,100 to 16,000 Hz.
  void save(std::string& to) const;
  /// Goes on from the bytes of `save`. The resampler was made like the one that saved, and was not fed. ParseError for bytes that no `save` of such a one
  /// appends.
  void load(std::string_view bytes);
  static constexpr std::size_t most_saved_bytes = 4096 + 16;

 private:
  std::unique_ptr<SampleConverter> converter_;  // none: equal rates
  bool ended_ = false;
};

}  // namespace millrace
