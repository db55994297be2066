// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <doctest/doctest.h>

#include <millrace/runtime/training/batches.h>

using namespace millrace;
using namespace millrace::training;

TEST_CASE("a permutation holds each number once, and is a function of seed and epoch") {
  const std::vector<std::int64_t> order = permutation(1000, 3, 7);
  std::vector<std::int64_t> sorted = order, all(1000);
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  CHECK(sorted == all);
  CHECK(order != all);
  CHECK(permutation(1000, 3, 7) == order);
  CHECK(permutation(1000, 3, 8) != order);
  CHECK(permutation(1000, 4, 7) != order);
  CHECK(permutation(0, 1, 1).empty());
}

TEST_CASE("a permutation favours no place") {
  double mean_of_first = 0;
  for (std::uint64_t epoch = 0; epoch < 2000; ++epoch) mean_of_first += static_cast<double>(permutation(11, 5, epoch)[0]) / 2000;
  CHECK(mean_of_first == doctest::Approx(5).epsilon(0.06));
}

TEST_CASE("batches end at their number of sequences or of rows, whatever comes first") {
  const LoD lod = LoD::from_lengths({{3, 0, 4, 9, 1, 1}});
  const std::vector<std::int64_t> order{0, 1, 2, 3, 4, 5};
  using Batches = std::vector<std::vector<std::int64_t>>;
  CHECK(deal_batches(lod, order, {4, 0}) == Batches{{0, 1, 2, 3}, {4, 5}});
  CHECK(deal_batches(lod, order, {0, 7}) == Batches{{0, 1, 2}, {3}, {4, 5}});
  CHECK(deal_batches(lod, order, {2, 7}) == Batches{{0, 1}, {2}, {3}, {4, 5}});
  CHECK(deal_batches(lod, {}, {2, 0}).empty());
  CHECK_THROWS_AS(deal_batches(lod, order, {0, 0}), ArgumentError);
  CHECK_THROWS_AS(deal_batches(lod, {6}, {2, 0}), IndexError);
}
