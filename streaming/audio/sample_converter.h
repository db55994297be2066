// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/streaming/audio/audio_config.h>

namespace millrace {

/// The converter of a Resampler, where the rates differ.
class SampleConverter {
 public:
  virtual ~SampleConverter() = default;
  /// Appends to `output` what can be computed; `last`: nothing follows.
  virtual void convert(std::span<const float> input, bool last, std::vector<float>& output) = 0;
  /// As those of Resampler.
  virtual void save(std::string& to) const = 0;
  virtual void load(std::string_view bytes) = 0;
};

/// UnsupportedError without the part samplerate.
std::unique_ptr<SampleConverter> make_sample_converter(int from_rate, int to_rate, ResampleQuality quality);

}  // namespace millrace
