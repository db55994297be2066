// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/recurrent/approximate.cuh>

#include <doctest/doctest.h>

#include <algorithm>
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

/// A function unit whose results are off by so many 2^-22 of themselves, with nothing below 2^-126.
template <int EXP2, int RECIPROCAL>
struct InexactUnit {
  static float off(double exact, int by) {
    const double found = exact * (1 + by * 0x1p-22);
    return found < 0x1p-126 ? 0.0f : static_cast<float>(found);
  }
  static float exp2(float x) { return off(std::exp2(static_cast<double>(x)), EXP2); }
  static float reciprocal(float x) { return off(1 / static_cast<double>(x), RECIPROCAL); }
};

double relative(float found, double exact) { return std::abs(found - exact) / std::abs(exact); }

template <class Unit>
void check_approximations() {
  Random random(3);
  double sigmoid = 0, narrow_sigmoid = 0, tanh = 0;
  for (int i = 0; i < 200'000; ++i) {
    const auto x = static_cast<float>(random.between(-870'000, 870'000)) / 10'000;
    const double of_sigmoid = relative(cuda::approximate_sigmoid<Unit>(x), 1 / (1 + std::exp(-static_cast<double>(x))));
    sigmoid = std::max(sigmoid, of_sigmoid);
    if (x > -17) narrow_sigmoid = std::max(narrow_sigmoid, of_sigmoid);
    // Of every exponent.
    const auto y =
        cuda::bits_as<float>(static_cast<std::uint32_t>(random.between(0x00800000, 0x42000000)) | (i % 2 == 0 ? 0x80000000u : 0));
    for (const float z : {x / 100, y}) tanh = std::max(tanh, relative(cuda::approximate_tanh<Unit>(z), std::tanh(static_cast<double>(z))));
  }
  INFO("off by ", sigmoid, ", ", narrow_sigmoid, ", ", tanh);
  CHECK(sigmoid < 0x1p-17);
  CHECK(narrow_sigmoid < 0x1p-19);
  CHECK(tanh < 0x1p-17);
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(cuda::approximate_sigmoid<Unit>(infinity) == doctest::Approx(1.0f));
  CHECK(cuda::approximate_sigmoid<Unit>(-infinity) == 0.0f);
  CHECK(std::isnan(cuda::approximate_sigmoid<Unit>(nan)));
  CHECK(cuda::approximate_tanh<Unit>(infinity) == 1.0f);
  CHECK(cuda::approximate_tanh<Unit>(-infinity) == -1.0f);
  CHECK(cuda::approximate_tanh<Unit>(0.0f) == 0.0f);
  CHECK(std::signbit(cuda::approximate_tanh<Unit>(-0.0f)));
  CHECK(std::isnan(cuda::approximate_tanh<Unit>(nan)));
}

}  // namespace

TEST_CASE("sigmoids and hyperbolic tangents by a function unit are closer than f16 rounds, whatever its errors") {
  check_approximations<cuda::FunctionUnit>();
  check_approximations<InexactUnit<1, 1>>();
  check_approximations<InexactUnit<1, -1>>();
  check_approximations<InexactUnit<-1, 1>>();
  check_approximations<InexactUnit<-1, -1>>();
}

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
