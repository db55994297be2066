// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/resampler.h>

#include <cmath>
#include <cstring>
#include <memory>

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

TEST_CASE("a resampler that is saved at any sample goes on elsewhere with the bits of the whole, the tail included") {
  const std::pair<int, int> rates[] = {{8000, 16000},  {16000, 8000},  {48000, 16000}, {24000, 16000},
                                       {12000, 16000}, {32000, 16000}, {16000, 48000}, {16000, 192000}};
  std::size_t saved = 0;
  for (const auto seed : seeds(200)) {
    Random random(seed);
    const auto [from, to] = rates[random.between(0, 7)];
    const auto quality = static_cast<ResampleQuality>(random.between(0, 2));
    INFO("seed ", seed, " from ", from, " to ", to, " quality ", static_cast<int>(quality));
    const std::vector<float> input = noise(static_cast<std::size_t>(random.between(0, 6000)), random);
    const std::vector<float> expected = whole(from, to, quality, input);
    std::vector<float> output;
    auto resampler = std::make_unique<Resampler>(from, to, quality);
    for (const auto piece : cut_anywhere(std::span<const float>(input), random)) {
      resampler->feed(piece, output);
      if (random.coin()) continue;
      std::string state;
      try {
        resampler->save(state);
      } catch (const UnsupportedError&) {  // three outputs for an input and the like
        CHECK(to / from >= 3);
        continue;
      }
      CHECK(state.size() <= Resampler::most_saved_bytes);
      resampler = std::make_unique<Resampler>(from, to, quality);
      resampler->load(state);
      ++saved;
    }
    resampler->end(output);
    REQUIRE(same_bits(output, expected));
  }
  CHECK(saved > 100);
}

TEST_CASE("a resampler whose place between samples is rounded, or whose filter reaches too far, is not saved, and says so") {
  for (const auto& [from, to] : {std::pair(44100, 16000), std::pair(11025, 8000), std::pair(16000, 48000), std::pair(192000, 16000)}) {
    std::string state;
    const std::string wanted = std::to_string(from) + " to " + std::to_string(to) + " Hz";
    CHECK_THROWS_WITH_AS(Resampler(from, to, ResampleQuality::best).save(state), doctest::Contains(wanted.c_str()), UnsupportedError);
  }
  Resampler resampler(8000, 16000, ResampleQuality::fastest);
  CHECK_THROWS_AS(resampler.load(std::string(17, '\1')), ParseError);
  std::string far(16, '\0');
  far[0] = 9;
  CHECK_THROWS_AS(Resampler(8000, 16000, ResampleQuality::fastest).load(far), ParseError);
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
