// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/bfloat16.h>

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

using namespace millrace;

namespace {
double widened(std::uint16_t bits) { return static_cast<double>(static_cast<float>(bfloat16::from_bits(bits))); }
constexpr std::uint16_t largest = 0x7f7f;
}  // namespace

TEST_CASE("each of the 65536 values widens to its definition and narrows back to itself") {
  for (std::uint32_t i = 0; i <= 0xffffu; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const int exponent = (bits >> 7) & 0xff;
    const int mantissa = bits & 0x7f;
    const auto wide = static_cast<float>(bfloat16::from_bits(bits));
    if (exponent == 0xff && mantissa != 0) {
      REQUIRE(std::isnan(wide));
      REQUIRE(std::isnan(static_cast<float>(bfloat16(wide))));
      continue;
    }
    REQUIRE(std::signbit(wide) == ((bits & 0x8000) != 0));
    if (exponent == 0xff)
      REQUIRE(std::isinf(wide));
    else if (exponent == 0)
      REQUIRE(std::fabs(static_cast<double>(wide)) == std::ldexp(mantissa, -133));
    else
      REQUIRE(std::fabs(static_cast<double>(wide)) == std::ldexp(128 + mantissa, exponent - 134));
    REQUIRE(bfloat16(wide).bits == bits);
  }
}

TEST_CASE("between any two neighbours narrowing goes to the nearer one, and to the even one from the middle") {
  for (std::uint16_t below = 0; below < largest; ++below) {
    const auto above = static_cast<std::uint16_t>(below + 1);
    const auto middle = static_cast<float>((widened(below) + widened(above)) / 2);
    const std::uint16_t even = (below & 1) == 0 ? below : above;
    REQUIRE(bfloat16(middle).bits == even);
    REQUIRE(bfloat16(std::nextafter(middle, 0.0f)).bits == below);
    REQUIRE(bfloat16(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits == above);
    REQUIRE(bfloat16(-middle).bits == (even | 0x8000));
  }
}

TEST_CASE("what is too large becomes infinity, and a NaN never does") {
  CHECK(bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(bfloat16(-std::numeric_limits<float>::max()).bits == 0xff80);
  CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0x7fffffffu)))));
}

TEST_CASE("values compare as numbers") {
  CHECK(bfloat16(0.0f) == bfloat16(-0.0f));
  CHECK(bfloat16(1.0f) != bfloat16(2.0f));
  static_assert(static_cast<float>(bfloat16(1.5f)) == 1.5f);
}
