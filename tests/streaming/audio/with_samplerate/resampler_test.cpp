// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/resampler.h>

#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

std::vector<float> noise(std::size_t count, Random& random) {
  std::vector<float> samples(count);
  for (float& sample : samples) sample = random.real();
  return samples;
}

std::vector<float> whole(int from, int to, ResampleQuality quality, const std::vector<float>& input) {
  Resampler resampler(from, to, quality);
  std::vector<float> output;
  resampler.feed(input, output);
  resampler.end(output);
  return output;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("resampled bits do not depend on how the input was cut, the tail included") {
  const std::pair<int, int> rates[] = {{8000, 16000},  {16000, 8000},  {44100, 16000}, {48000, 16000},
                                       {11025, 16000}, {16000, 44100}, {4000, 192000}};
  for (const auto seed : seeds(40)) {
    Random random(seed);
    const auto [from, to] = rates[random.between(0, 6)];
    const auto quality = static_cast<ResampleQuality>(random.between(0, 2));
    INFO("seed ", seed, " from ", from, " to ", to, " quality ", static_cast<int>(quality));
    const std::vector<float> input = noise(static_cast<std::size_t>(random.between(0, 1500)), random);
    const std::vector<float> expected = whole(from, to, quality, input);
    for (int cut = 0; cut < 2; ++cut) {
      Resampler resampler(from, to, quality);
      std::vector<float> output;
      for (const auto piece : cut_anywhere(std::span<const float>(input), random)) resampler.feed(piece, output);
      resampler.end(output);
      REQUIRE(same_bits(output, expected));
    }
  }
}

TEST_CASE("a second at one rate is a second at the other, give or take a sample") {
  Random random(1);
  const auto output = whole(8000, 16000, ResampleQuality::medium, noise(8000, random));
  CHECK(output.size() == 16000);
  const auto odd = whole(44100, 16000, ResampleQuality::medium, noise(44100, random));
  CHECK(odd.size() >= 15999);
  CHECK(odd.size() <= 16000);
  CHECK(whole(8000, 16000, ResampleQuality::medium, {}).empty());
}

TEST_CASE("a tone keeps its frequency, its phase and its size") {
  std::vector<float> tone(8000);
  for (std::size_t k = 0; k < tone.size(); ++k)
    tone[k] = 0.5f * static_cast<float>(std::sin(2 * M_PI * 440 * static_cast<double>(k) / 8000));
  const auto output = whole(8000, 16000, ResampleQuality::medium, tone);
  double worst = 0;
  for (std::size_t k = 1000; k + 1000 < output.size(); ++k)
    worst = std::max(worst, std::abs(output[k] - 0.5 * std::sin(2 * M_PI * 440 * static_cast<double>(k) / 16000)));
  CHECK(worst < 1e-3);
}

TEST_CASE("equal rates pass through, and nothing may follow the end") {
  Random random(1);
  const auto input = noise(100, random);
  Resampler resampler(16000, 16000, ResampleQuality::best);
  std::vector<float> output;
  resampler.feed(input, output);
  CHECK(same_bits(output, input));
  resampler.end(output);
  resampler.end(output);
  CHECK(same_bits(output, input));
  CHECK_THROWS_AS(resampler.feed(input, output), ArgumentError);
  CHECK_THROWS_AS(Resampler(0, 16000, ResampleQuality::best), ArgumentError);
  CHECK_THROWS_AS(Resampler(1, 257, ResampleQuality::best), ArgumentError);
}
