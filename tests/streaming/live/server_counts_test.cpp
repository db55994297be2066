// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/server_counts.h>

#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("a histogram counts a value at its bound below it, and one above all bounds apart") {
  Histogram histogram{0.5, 1, 2};
  for (const double value : {0.0, 0.5, 0.75, 1.0, 2.0, 2.5, 100.0}) histogram.observe(value);
  CHECK(std::vector<std::uint64_t>(histogram.counts().begin(), histogram.counts().end()) == std::vector<std::uint64_t>{2, 2, 1, 2});
  CHECK(histogram.count() == 7);
  CHECK(histogram.sum() == 106.75);
  CHECK_THROWS_AS((Histogram{2, 1}), ArgumentError);
  CHECK_THROWS_AS((Histogram{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}), ArgumentError);
}

TEST_CASE("outcomes have a count each, by the names that sessions end with") {
  OutcomeCounts counts;
  for (std::size_t i = 0; i < OutcomeCounts::size; ++i) {
    for (std::size_t times = 0; times <= i; ++times) counts.add(OutcomeCounts::name(i));
    CHECK(counts.at(i) == i + 1);
    CHECK(counts.count(OutcomeCounts::name(i)) == i + 1);
  }
  CHECK_THROWS_AS(name_of(static_cast<ErrorCode>(OutcomeCounts::codes)), std::out_of_range);  // no code is left without a count
  CHECK(OutcomeCounts::name(0) == "bad_message");
  CHECK(OutcomeCounts::name(OutcomeCounts::codes) == "ended");
  CHECK(OutcomeCounts::name(OutcomeCounts::codes + 1) == "gone");
}
