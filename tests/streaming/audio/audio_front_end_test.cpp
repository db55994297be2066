// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/audio_front_end.h>

#include <cstring>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/error_code.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

AudioConfig config_of(int window, int hop, int context) {
  AudioConfig config;
  config.window = window;
  config.hop = hop;
  config.context = context;
  return config;
}

AudioFormat format_of(SampleFormat samples, int channels) {
  AudioFormat format;
  format.format = samples;
  format.channels = channels;
  return format;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

using Rows = std::vector<std::vector<float>>;

Rows pop_rows(AudioFrontEnd& front, std::size_t count) {
  Rows rows;
  for (std::size_t k = 0; k < count; ++k) {
    const auto bytes = front.row(k);
    std::vector<float>& row = rows.emplace_back(bytes.size() / sizeof(float));
    std::memcpy(row.data(), bytes.data(), bytes.size());
  }
  front.pop(count);
  return rows;
}

Rows whole(AudioFrontEnd front, const std::string& bytes) {
  Rows rows;
  auto left = bytes_of(bytes);
  while (!left.empty()) {
    left = left.subspan(front.feed(left));
    for (auto& row : pop_rows(front, front.rows())) rows.push_back(std::move(row));
  }
  front.end();
  for (auto& row : pop_rows(front, front.rows())) rows.push_back(std::move(row));
  return rows;
}

/// By the definition: row k is samples [k·hop − context, k·hop + window), zeros outside; rows go on until one holds the last sample or none
/// is left.
Rows reference(const std::vector<float>& samples, const AudioConfig& config) {
  Rows rows;
  const auto total = static_cast<std::int64_t>(samples.size());
  for (std::int64_t at = 0; at < total; at += config.hop) {
    if (at > 0 && at - config.hop + config.window >= total) break;
    std::vector<float>& row = rows.emplace_back();
    for (std::int64_t k = at - config.context; k < at + config.window; ++k)
      row.push_back(k >= 0 && k < total ? samples[static_cast<std::size_t>(k)] : 0.0f);
  }
  return rows;
}

}  // namespace

TEST_CASE("windows follow their definition for every window, hop, context and length") {
  for (int window = 1; window <= 5; ++window)
    for (int hop = 1; hop <= 7; ++hop)
      for (int context = 0; context <= 3; ++context)
        for (int length = 0; length <= 20; ++length) {
          INFO("window ", window, " hop ", hop, " context ", context, " length ", length);
          std::vector<float> samples;
          for (int k = 1; k <= length; ++k) samples.push_back(static_cast<float>(k));
          const AudioConfig config = config_of(window, hop, context);
          REQUIRE(whole(AudioFrontEnd(config, format_of(SampleFormat::f32, 1)), raw(samples)) == reference(samples, config));
        }
}

TEST_CASE("rows do not depend on how the bytes were cut or when rows were taken") {
  for (const auto seed : seeds(150)) {
    INFO("seed ", seed);
    Random random(seed);
    const AudioConfig config = config_of(static_cast<int>(random.between(1, 60)), static_cast<int>(random.between(1, 80)),
                                         static_cast<int>(random.between(0, 30)));
    const AudioFormat format = format_of(random.coin() ? SampleFormat::s16 : SampleFormat::f32, static_cast<int>(random.between(1, 8)));
    std::string bytes(format.frame_bytes() * static_cast<std::size_t>(random.between(0, 500)), ' ');
    for (char& c : bytes) c = static_cast<char>(random.between(0, 100));
    const Rows expected = whole(AudioFrontEnd(config, format), bytes);
    AudioFrontEnd front(config, format, static_cast<std::size_t>(random.between(1, 2000)));
    Rows rows;
    const auto take = [&](std::size_t least) {
      const auto count = random.between(static_cast<std::int64_t>(least), static_cast<std::int64_t>(front.rows()));
      for (auto& row : pop_rows(front, static_cast<std::size_t>(count))) rows.push_back(std::move(row));
    };
    for (auto piece : cut_anywhere(bytes_of(bytes), random))
      while (!piece.empty()) {
        piece = piece.subspan(front.feed(piece));
        if (!piece.empty()) REQUIRE(front.rows() > 0);
        take(piece.empty() ? 0 : 1);
      }
    front.end();
    take(front.rows());
    REQUIRE(rows == expected);
    CHECK(front.ended());
  }
}

TEST_CASE("s16 is scaled by 1/32768 and channels are averaged") {
  const std::vector<std::int16_t> samples{-32768, 32767, 16384, 0};
  const auto rows = whole(AudioFrontEnd(config_of(4, 4, 0), format_of(SampleFormat::s16, 1)), raw(samples));
  CHECK(rows == Rows{{-1.0f, 32767.0f / 32768.0f, 0.5f, 0.0f}});
  const auto stereo = whole(AudioFrontEnd(config_of(2, 2, 1), format_of(SampleFormat::s16, 2)), raw(samples));
  CHECK(stereo == Rows{{0.0f, (-1.0f + 32767.0f / 32768.0f) / 2, 0.25f}});
}

TEST_CASE("what waits is bounded by the capacity and a bite") {
  AudioFrontEnd front(config_of(512, 512, 64), format_of(SampleFormat::s16, 1), 8192);
  const std::string bytes(1 << 20, 'a');
  const std::size_t taken = front.feed(bytes_of(bytes));
  CHECK(taken < bytes.size());
  CHECK(front.rows() > 0);
  CHECK(front.held_bytes() < 8192 + 2 * 4096);
  CHECK(front.feed(bytes_of(bytes)) == 0);
  front.pop(front.rows());
  CHECK(front.feed(bytes_of(bytes)) > 0);
}

TEST_CASE("samples that end inside a frame, and samples after the end, are bad input") {
  AudioFrontEnd front(config_of(4, 4, 0), format_of(SampleFormat::s16, 2));
  front.feed(bytes_of("12345"));
  CHECK_THROWS_WITH_AS(front.end(), "audio: expected whole samples of 4 bytes (all channels), found 1 bytes of one at the end",
                       ProtocolError);
  front.feed(bytes_of("678"));
  front.end();
  CHECK(front.rows() == 1);
  CHECK(front.samples() == 2);
  CHECK(front.seconds() == 2.0 / 16000);
  CHECK_THROWS_AS(front.feed(bytes_of("1")), ProtocolError);
  CHECK_THROWS_AS(front.row(1), IndexError);
  CHECK_THROWS_AS(front.pop(2), IndexError);
}

TEST_CASE("a config or a format out of range is refused with the range") {
  CHECK_THROWS_AS(AudioFrontEnd(config_of(0, 1, 0), AudioFormat()), ArgumentError);
  CHECK_THROWS_AS(AudioFrontEnd(config_of(1, 0, 0), AudioFormat()), ArgumentError);
  CHECK_THROWS_AS(AudioFrontEnd(config_of(1, 1, -1), AudioFormat()), ArgumentError);
  CHECK_THROWS_AS(AudioFrontEnd(config_of(1, 1, 0), format_of(SampleFormat::s16, 9)), ArgumentError);
  AudioFormat slow;
  slow.rate = 3999;
  CHECK_THROWS_WITH_AS(AudioFrontEnd(config_of(1, 1, 0), slow), "audio: expected a rate in Hz from 4000 to 192000, found 3999",
                       ArgumentError);
}
