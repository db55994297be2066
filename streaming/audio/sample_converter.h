// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <millrace/streaming/audio/audio_config.h>

namespace millrace {

/// What a Resampler does its work with, where the rates differ.
class SampleConverter {
 public:
  virtual ~SampleConverter() = default;
  /// Appends to `output` what can be computed; `last`: nothing follows.
  virtual void convert(std::span<const float> input, bool last, std::vector<float>& output) = 0;
};

/// UnsupportedError without the part samplerate.
std::unique_ptr<SampleConverter> make_sample_converter(int from_rate, int to_rate, ResampleQuality quality);

}  // namespace millrace
