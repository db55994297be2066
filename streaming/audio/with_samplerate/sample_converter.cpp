// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/sample_converter.h>

#include <samplerate.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>

#include <millrace/streaming/audio/resampler.h>
#include <millrace/streaming/protocol/byte_reader.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

int converter_of(ResampleQuality quality) {
  switch (quality) {
    case ResampleQuality::fastest: return SRC_SINC_FASTEST;
    case ResampleQuality::medium: return SRC_SINC_MEDIUM_QUALITY;
    default: return SRC_SINC_BEST_QUALITY;
  }
}

/// Input samples that a filter of libsamplerate reaches to either side where the rate does not fall; where it falls, that many times the ratio.
double reach_of(ResampleQuality quality) {
  switch (quality) {
    case ResampleQuality::fastest: return 20;
    case ResampleQuality::medium: return 46;
    default: return 143;
  }
}

/// A state of libsamplerate is known to itself alone. But an output is a function of the samples within the filter's reach and of its place between two of
/// them, which is a sum of steps from / to. Where those steps are exact numbers of few bits, so are all sums: another converter that begins at an input sample
/// with an output upon it, and gets the samples from there, stands where this one does.
class SincConverter final : public SampleConverter {
 public:
  SincConverter(int from_rate, int to_rate, ResampleQuality quality)
      : ratio_(static_cast<double>(to_rate) / from_rate),
        rates_(std::to_string(from_rate) + " to " + std::to_string(to_rate) + " Hz"),
        inputs_(static_cast<std::uint64_t>(from_rate / std::gcd(from_rate, to_rate))),
        outputs_(static_cast<std::uint64_t>(to_rate / std::gcd(from_rate, to_rate))) {
    int error = 0;
    state_.reset(src_new(converter_of(quality), 1, &error));
    if (!state_) throw OutOfMemoryError(std::string("audio: libsamplerate: ") + src_strerror(error));
    constexpr std::uint64_t most_outputs = 64;
    constexpr std::size_t head = 2 * sizeof(std::uint64_t), most = (Resampler::most_saved_bytes - head) / sizeof(float);
    const auto reach = static_cast<std::size_t>(std::ceil(reach_of(quality) * std::max(1.0, 1 / ratio_))) + 2;
    // The samples left of the next output and right of the last one, up to where an output lies upon an input.
    if (const std::size_t wanted = 2 * reach + static_cast<std::size_t>(inputs_);
        std::has_single_bit(outputs_) && outputs_ <= most_outputs && wanted + inputs_ <= most)
      kept_ = wanted;
  }

  void convert(std::span<const float> input, bool last, std::vector<float>& output) override {
    std::array<float, 1024> piece;
    for (;;) {
      SRC_DATA data{};
      data.data_in = input.empty() ? silence_.data() : input.data();  // null is refused, also when there is nothing to read
      data.input_frames = static_cast<long>(input.size());
      data.data_out = piece.data();
      data.output_frames = static_cast<long>(piece.size());
      data.end_of_input = last ? 1 : 0;
      data.src_ratio = ratio_;
      if (const int error = src_process(state_.get(), &data))
        throw ArgumentError(std::string("audio: libsamplerate: ") + src_strerror(error));
      const auto used = static_cast<std::size_t>(data.input_frames_used);
      if (kept_ > 0) past_.insert(past_.end(), input.begin(), input.begin() + data.input_frames_used);
      taken_ += used;
      made_ += static_cast<std::uint64_t>(data.output_frames_gen);
      input = input.subspan(used);
      output.insert(output.end(), piece.begin(), piece.begin() + data.output_frames_gen);
      if (data.output_frames_gen == 0 && (input.empty() || used == 0)) break;
    }
    if (past_.size() > 2 * kept_) past_.erase(past_.begin(), past_.end() - static_cast<std::ptrdiff_t>(held()));
  }

  void save(std::string& to) const override {
    if (kept_ == 0)
      throw UnsupportedError(
          "audio: expected rates between which a resampler can be saved, such as 8000, 24000 or 48000 to 16000 Hz, found " + rates_);
    append_little_endian(to, taken_);
    append_little_endian(to, made_);
    const std::size_t count = held();
    to.append(reinterpret_cast<const char*>(past_.data() + (past_.size() - count)), count * sizeof(float));
  }

  void load(std::string_view bytes) override {
    ByteReader reader("audio", bytes);
    const auto taken = reader.number<std::uint64_t>(), made = reader.number<std::uint64_t>();
    const std::size_t count = reader.left() / sizeof(float);
    if (reader.left() % sizeof(float) != 0 || count > taken || (taken - count) % inputs_ != 0)
      throw ParseError("audio: expected the samples that a resampler reaches, found " + std::to_string(bytes.size()) + " bytes");
    std::vector<float> again(count), output;
    if (count > 0) std::memcpy(again.data(), reader.take(count * sizeof(float)).data(), count * sizeof(float));
    taken_ = taken - count;
    made_ = taken_ / inputs_ * outputs_;
    convert(again, false, output);
    if (taken_ != taken || made_ != made)
      throw ParseError("audio: expected samples that bring a resampler to output " + std::to_string(made) + ", found output " +
                       std::to_string(made_));
  }

 private:
  struct Delete {
    void operator()(SRC_STATE* state) const noexcept { src_delete(state); }
  };
  /// The number of past samples that are held. The first of them has an output upon it.
  std::size_t held() const {
    const std::uint64_t wanted = std::min<std::uint64_t>(kept_, taken_);
    const std::uint64_t first = (taken_ - wanted) / inputs_ * inputs_;
    return static_cast<std::size_t>(taken_ - first);
  }

  double ratio_;
  std::string rates_;
  std::uint64_t inputs_, outputs_;  // as many inputs are as long as so many outputs
  std::size_t kept_ = 0;            // samples of the past; 0: it cannot be saved
  std::vector<float> past_;
  std::uint64_t taken_ = 0, made_ = 0;
  std::array<float, 1> silence_{};
  std::unique_ptr<SRC_STATE, Delete> state_;
};

}  // namespace

std::unique_ptr<SampleConverter> make_sample_converter(int from_rate, int to_rate, ResampleQuality quality) {
  return std::make_unique<SincConverter>(from_rate, to_rate, quality);
}

}  // namespace millrace
