// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
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

 private:
  std::unique_ptr<SampleConverter> converter_;  // none: equal rates
  bool ended_ = false;
};

}  // namespace millrace
