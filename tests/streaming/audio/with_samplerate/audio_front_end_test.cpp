// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/audio_front_end.h>

#include <doctest/doctest.h>

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
