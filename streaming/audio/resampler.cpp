// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/resampler.h>

#include <cstdint>
#include <string>

#include <millrace/streaming/audio/sample_converter.h>
#include <millrace/tensor/error.h>

namespace millrace {

Resampler::Resampler(int from_rate, int to_rate, ResampleQuality quality) {
  constexpr std::int64_t furthest = 256;
  if (from_rate <= 0 || to_rate <= 0 || from_rate > furthest * to_rate || to_rate > furthest * from_rate)
    throw ArgumentError("audio: expected positive rates at most 1 : 256 apart, found " + std::to_string(from_rate) + " and " +
                        std::to_string(to_rate) + " Hz");
  if (from_rate != to_rate) converter_ = make_sample_converter(from_rate, to_rate, quality);
}

Resampler::Resampler(Resampler&&) noexcept = default;
Resampler& Resampler::operator=(Resampler&&) noexcept = default;
Resampler::~Resampler() = default;

void Resampler::feed(std::span<const float> input, std::vector<float>& output) {
  if (ended_) throw ArgumentError("audio: expected no samples after the end");
  if (converter_)
    converter_->convert(input, false, output);
  else
    output.insert(output.end(), input.begin(), input.end());
}

void Resampler::end(std::vector<float>& output) {
  if (ended_) return;
  ended_ = true;
  if (converter_) converter_->convert({}, true, output);
}

void Resampler::save(std::string& to) const {
  if (converter_) converter_->save(to);
}

void Resampler::load(std::string_view bytes) {
  if (converter_)
    converter_->load(bytes);
  else if (!bytes.empty())
    throw ParseError("audio: expected nothing of a resampler of equal rates, found " + std::to_string(bytes.size()) + " bytes");
}

}  // namespace millrace
