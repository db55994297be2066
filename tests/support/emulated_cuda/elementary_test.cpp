// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/recurrent/elementary.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <support/random.h>

namespace millrace::testing {
namespace {

/// A device's reciprocal is off by one unit in the last place at most.
bool is_division(float a, float b) {
  const float nearest = 1.0f / b;
  for (const float r : {std::nextafter(nearest, 0.0f), nearest, std::nextafter(nearest, 2.0f)})
    if (cuda::bits_as<std::uint32_t>(cuda::refined_quotient(a, b, r)) != cuda::bits_as<std::uint32_t>(a / b)) {
      INFO("a ", a, ", b ", b, ", reciprocal ", r);
      CHECK(false);
      return false;
    }
  return true;
}

}  // namespace

TEST_CASE("the quotient of a sigmoid is that of a division, for any reciprocal that a device may give") {
  Random random(1);
  // e runs over all exponents, ends included.
  for (int i = 0; i < 300'000; ++i) {
    const auto bits = i < 1000 ? static_cast<std::uint32_t>(i) : static_cast<std::uint32_t>(random.between(0, 0x3f800000));
    const auto e = cuda::bits_as<float>(i % 2 == 0 ? bits : 0x3f800000u - bits % 0x0d000000u);
    if (!is_division(e, 1.0f + e) || !is_division(1.0f, 1.0f + e)) return;
  }
  CHECK(is_division(1.0f, 2.0f));
}

TEST_CASE("the quotient of a hyperbolic tangent is that of a division, for any reciprocal that a device may give") {
  Random random(2);
  for (int i = 0; i < 300'000; ++i) {
    const auto bits = i < 1000 ? static_cast<std::uint32_t>(i) : static_cast<std::uint32_t>(random.between(0, 0x4e000000));
    const auto t = cuda::bits_as<float>(i % 2 == 0 ? bits : 0x4e000000u - bits % 0x1b000000u);
    if (!is_division(t, t + 2.0f)) return;
  }
}

TEST_CASE("sigmoids and hyperbolic tangents hold at infinities, zeros and NaN") {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(cuda::sigmoid_of(infinity) == 1.0f);
  CHECK(cuda::sigmoid_of(-infinity) >= 0.0f);
  CHECK(cuda::sigmoid_of(-infinity) < 1e-37f);
  CHECK(cuda::sigmoid_of(0.0f) == 0.5f);
  CHECK(std::isnan(cuda::sigmoid_of(nan)));
  CHECK(cuda::tanh_of(infinity) == 1.0f);
  CHECK(cuda::tanh_of(-infinity) == -1.0f);
  CHECK(std::signbit(cuda::tanh_of(-0.0f)));
  CHECK(std::isnan(cuda::tanh_of(nan)));
  CHECK(std::isnan(cuda::exp_of(nan)));
  CHECK(cuda::exp_of(0.0f) == 1.0f);
}

}  // namespace millrace::testing
