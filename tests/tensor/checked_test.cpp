// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/checked.h>

#include <limits>

#include <doctest/doctest.h>

using namespace millrace;
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

TEST_CASE("products and sums that fit are what they are") {
  static_assert(checked_mul(6, 7) == 42);
  CHECK(checked_mul<std::int64_t>(most, 1) == most);
  CHECK(checked_mul<std::int64_t>(most, 0) == 0);
  CHECK(checked_add<std::int64_t>(most, 0) == most);
  CHECK(checked_add<std::int64_t>(-3, 3) == 0);
}

TEST_CASE("products and sums that do not fit are overflow errors that name both sides") {
  CHECK_THROWS_WITH_AS(checked_mul<std::int64_t>(most, 2), "size: 9223372036854775807 * 2 does not fit its integer", OverflowError);
  CHECK_THROWS_WITH_AS(checked_add<std::int64_t>(most, 1), "size: 9223372036854775807 + 1 does not fit its integer", OverflowError);
  CHECK_THROWS_AS(checked_mul<std::int64_t>(std::numeric_limits<std::int64_t>::min(), -1), OverflowError);
  CHECK_THROWS_AS(checked_add<std::size_t>(~std::size_t{0}, 1), OverflowError);
}

TEST_CASE("a cast keeps the value or is an overflow error") {
  CHECK(checked_cast<std::uint8_t>(255) == 255);
  CHECK(checked_cast<std::int64_t>(std::size_t{7}) == 7);
  CHECK_THROWS_AS(checked_cast<std::uint8_t>(256), OverflowError);
  CHECK_THROWS_AS(checked_cast<std::size_t>(-1), OverflowError);
  CHECK_THROWS_AS(checked_cast<std::int64_t>(~std::uint64_t{0}), OverflowError);
}
