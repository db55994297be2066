// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/float16.h>

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

using namespace millrace;

namespace {

/// The value of half `bits` by its definition: sign · 2^(e−15) · 1.m, or 2^−14 · 0.m for subnormals.
double by_definition(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1f) return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

constexpr std::uint16_t largest = 0x7bff;

}  // namespace

TEST_CASE("each of the 65536 halves widens to its definition and narrows back to itself") {
  for (std::uint32_t i = 0; i <= 0xffffu; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const auto widened = static_cast<float>(float16::from_bits(bits));
    const double expected = by_definition(bits);
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(widened));
      REQUIRE(std::isnan(static_cast<float>(float16(widened))));
    } else {
      REQUIRE(static_cast<double>(widened) == expected);
      REQUIRE(std::signbit(widened) == ((bits & 0x8000) != 0));
      REQUIRE(float16(widened).bits == bits);
    }
  }
}

TEST_CASE("between any two neighbours narrowing goes to the nearer one, and to the even one from the middle") {
  for (std::uint16_t below = 0; below < largest; ++below) {
    const auto above = static_cast<std::uint16_t>(below + 1);
    const auto middle = static_cast<float>((by_definition(below) + by_definition(above)) / 2);
    const std::uint16_t even = (below & 1) == 0 ? below : above;
    REQUIRE(float16(middle).bits == even);
    REQUIRE(float16(std::nextafter(middle, 0.0f)).bits == below);
    REQUIRE(float16(std::nextafter(middle, 1e9f)).bits == above);
    REQUIRE(float16(-middle).bits == (even | 0x8000));
  }
}

TEST_CASE("what is too large becomes infinity, what is too small becomes zero, both with their sign") {
  CHECK(float16(65519.996f).bits == largest);
  CHECK(float16(65520.0f).bits == 0x7c00);
  CHECK(float16(-1e30f).bits == 0xfc00);
  CHECK(float16(std::numeric_limits<float>::infinity()).bits == 0x7c00);
  CHECK(float16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(float16(-1e-30f).bits == 0x8000);
}

TEST_CASE("halves compare by value") {
  CHECK(float16(0.0f) == float16(-0.0f));
  CHECK(float16(1.0f) != float16(1.001f));
  const float16 nan(std::numeric_limits<float>::quiet_NaN());
  CHECK_FALSE(nan == nan);
  static_assert(static_cast<float>(float16(1.5f)) == 1.5f);
}
