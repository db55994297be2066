// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/sample_converter.h>

#include <samplerate.h>

#include <algorithm>
#include <array>
#include <string>

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

class SincConverter final : public SampleConverter {
 public:
  SincConverter(double ratio, ResampleQuality quality) : ratio_(ratio) {
    int error = 0;
    state_.reset(src_new(converter_of(quality), 1, &error));
    if (!state_) throw OutOfMemoryError(std::string("audio: libsamplerate: ") + src_strerror(error));
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
      input = input.subspan(static_cast<std::size_t>(data.input_frames_used));
      output.insert(output.end(), piece.begin(), piece.begin() + data.output_frames_gen);
      if (data.output_frames_gen == 0 && (input.empty() || data.input_frames_used == 0)) return;
    }
  }

 private:
  struct Delete {
    void operator()(SRC_STATE* state) const noexcept { src_delete(state); }
  };
  double ratio_;
  std::array<float, 1> silence_{};
  std::unique_ptr<SRC_STATE, Delete> state_;
};

}  // namespace

std::unique_ptr<SampleConverter> make_sample_converter(int from_rate, int to_rate, ResampleQuality quality) {
  return std::make_unique<SincConverter>(static_cast<double>(to_rate) / from_rate, quality);
}

}  // namespace millrace
