// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/audio_front_end.h>

#include <memory>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

std::string all_rows(AudioFrontEnd& front) {
  std::string rows;
  for (std::size_t k = 0; k < front.rows(); ++k) {
    const auto row = front.row(k);
    rows.append(reinterpret_cast<const char*>(row.data()), row.size());
  }
  front.pop(front.rows());
  return rows;
}

std::string run(const AudioConfig& config, const AudioFormat& format, const std::vector<std::span<const std::byte>>& pieces) {
  AudioFrontEnd front(config, format);
  std::string rows;
  for (auto piece : pieces)
    while (!piece.empty()) {
      piece = piece.subspan(front.feed(piece));
      rows += all_rows(front);
    }
  front.end();
  return rows + all_rows(front);
}

}  // namespace

TEST_CASE("resampled windows are the same bits however the bytes were cut") {
  for (const auto seed : seeds(30)) {
    INFO("seed ", seed);
    Random random(seed);
    AudioConfig config;
    config.context = 64;
    AudioFormat format;
    const int rates[] = {8000, 11025, 44100, 48000};
    format.rate = rates[random.between(0, 3)];
    format.channels = static_cast<int>(random.between(1, 2));
    std::string bytes(format.frame_bytes() * static_cast<std::size_t>(random.between(0, 9000)), ' ');
    for (char& c : bytes) c = static_cast<char>(random.next());
    const std::string expected = run(config, format, {bytes_of(bytes)});
    REQUIRE(run(config, format, cut_anywhere(bytes_of(bytes), random)) == expected);
    const std::size_t rows = expected.size() / (576 * sizeof(float));
    const double samples = static_cast<double>(bytes.size() / format.frame_bytes()) * 16000 / format.rate;
    CHECK(rows >= static_cast<std::size_t>(samples / 512));
    CHECK(rows <= static_cast<std::size_t>(samples / 512) + 1);
  }
}

TEST_CASE("resampled audio that is saved at any byte goes on elsewhere with the same windows") {
  for (const auto seed : seeds(60)) {
    INFO("seed ", seed);
    Random random(seed);
    AudioConfig config;
    config.quality = static_cast<ResampleQuality>(random.between(0, 2));
    config.window = static_cast<int>(random.between(1, 400));
    config.hop = static_cast<int>(random.between(1, 600));
    AudioFormat format;
    const int rates[] = {8000, 24000, 32000, 48000};
    format.rate = rates[random.between(0, 3)];
    format.channels = static_cast<int>(random.between(1, 2));
    std::string bytes(format.frame_bytes() * static_cast<std::size_t>(random.between(0, 5000)), ' ');
    for (char& c : bytes) c = static_cast<char>(random.next());
    auto front = std::make_unique<AudioFrontEnd>(config, format);
    std::string rows;
    for (auto piece : cut_anywhere(bytes_of(bytes), random))
      while (!piece.empty()) {
        piece = piece.subspan(front->feed(piece));
        rows += all_rows(*front);
        if (random.coin()) continue;
        std::string state;
        front->save(state);
        CHECK(state.size() <= Resampler::most_saved_bytes + front->row_bytes() + 128);
        front = std::make_unique<AudioFrontEnd>(config, format);
        front->load(state);
      }
    front->end();
    CHECK(rows + all_rows(*front) == run(config, format, {bytes_of(bytes)}));
  }
  AudioFormat rounded;
  rounded.rate = 44100;
  std::string state;
  CHECK_THROWS_AS(AudioFrontEnd(AudioConfig(), rounded).save(state), UnsupportedError);
}
