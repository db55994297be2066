// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/random.h>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <kernels/device_under_test.h>
#include <support/same_bits.h>

namespace millrace::testing {
namespace {

std::vector<double> moments(const std::vector<float>& numbers) {
  std::vector<double> sums(4, 0.0);
  for (const float each : numbers)
    for (std::size_t i = 0; i < 4; ++i) sums[i] += std::pow(static_cast<double>(each), static_cast<double>(i + 1));
  for (double& sum : sums) sum /= static_cast<double>(numbers.size());
  return sums;
}

}  // namespace

TEST_CASE("random numbers have the moments of their distribution, and uniform ones lie in [0, 1)") {
  CpuDevice device;
  constexpr std::int64_t count = 200'000;
  const std::vector<float> normal =
      random_numbers(DDim{count}, 0, {.distribution = Distribution::normal}, device.stream(0)).to_vector<float>();
  const std::vector<double> of_normal = moments(normal);
  CHECK(std::abs(of_normal[0]) < 0.01);
  CHECK(of_normal[1] == doctest::Approx(1).epsilon(0.02));
  CHECK(std::abs(of_normal[2]) < 0.05);
  CHECK(of_normal[3] == doctest::Approx(3).epsilon(0.05));
  const std::vector<float> uniform = random_numbers(DDim{count}, 0, {}, device.stream(0)).to_vector<float>();
  const std::vector<double> of_uniform = moments(uniform);
  for (std::size_t i = 0; i < 4; ++i) CHECK(of_uniform[i] == doctest::Approx(1 / static_cast<double>(i + 2)).epsilon(0.02));
  for (const float each : uniform) {
    if (each >= 0 && each < 1) continue;
    FAIL("expected a number in [0, 1), found ", each);
  }
}

TEST_CASE("random numbers are the same on any number of threads and in every call, and a shorter result begins a longer one") {
  CpuDevice one(1), two(2);
  for (const Distribution distribution : {Distribution::uniform, Distribution::normal}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const RandomOptions options{.distribution = distribution, .dtype = dtype, .seed = 5, .number = 2};
      const Tensor whole = random_numbers(DDim{3, 7001}, 4, options, one.stream(0));
      CHECK(whole.dtype() == dtype);
      CHECK(same_bits(random_numbers(DDim{3, 7001}, 4, options, two.stream(0)), whole));
      CHECK(same_bits(random_numbers(DDim{1, 7001}, 4, options, one.stream(0)), whole.rows(0, 1)));
    }
  }
  CHECK(random_numbers(DDim{0, 3}, 0, {}, one.stream(0)).dims() == DDim{0, 3});
}

TEST_CASE("another seed, number or key draws other random numbers") {
  CpuDevice device;
  const Tensor first = random_numbers(DDim{64}, 1, {.seed = 1, .number = 1}, device.stream(0));
  CHECK_FALSE(same_bits(random_numbers(DDim{64}, 1, {.seed = 2, .number = 1}, device.stream(0)), first));
  CHECK_FALSE(same_bits(random_numbers(DDim{64}, 1, {.seed = 1, .number = 2}, device.stream(0)), first));
  CHECK_FALSE(same_bits(random_numbers(DDim{64}, 2, {.seed = 1, .number = 1}, device.stream(0)), first));
}

TEST_CASE("random numbers of another dtype than f32 and f64 are refused") {
  CpuDevice device;
  CHECK_THROWS_WITH_AS(random_numbers(DDim{2}, 0, {.dtype = DType::i64}, device.stream(0)),
                       "random_numbers: expected f32 or f64, found i64", DTypeError);
}

}  // namespace millrace::testing
