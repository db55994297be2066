// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/resampler.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("without the part samplerate another rate throws and names it, and equal rates pass") {
  CHECK_THROWS_WITH_AS(Resampler(8000, 16000, ResampleQuality::medium), doctest::Contains("MILLRACE_SAMPLERATE"), UnsupportedError);
  std::vector<float> output;
  Resampler(16000, 16000, ResampleQuality::medium).feed(std::vector<float>{1, 2}, output);
  CHECK(output == std::vector<float>{1, 2});
}
