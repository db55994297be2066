// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/sequence_order.h>

#include <limits>

#include <doctest/doctest.h>

using namespace millrace;
using Table = std::vector<SequenceOrder::Ranked>;
using Numbers = std::vector<std::int64_t>;

namespace {
Numbers numbers(std::span<const std::int64_t> values) { return {values.begin(), values.end()}; }
}  // namespace

TEST_CASE("case 1: the longest sequence ranks first") {
  const SequenceOrder order(LoD::from_lengths({{3, 6, 1}}), 0, true);
  CHECK(order.rank_table() == Table{{1, 6}, {0, 3}, {2, 1}});
  CHECK(order.steps() == 6);
  CHECK(order.sequences() == 3);
}

TEST_CASE("case 2: an empty sequence ranks last and lives at no step") {
  const SequenceOrder order(LoD::from_lengths({{3, 6, 0, 1}}), 0, true);
  CHECK(order.rank_table() == Table{{1, 6}, {0, 3}, {3, 1}, {2, 0}});
  CHECK(order.live(-1) == 4);
  CHECK(order.live(0) == 3);
}

TEST_CASE("case 4: ties keep their order") {
  CHECK(SequenceOrder(LoD::from_lengths({{5, 1, 1}}), 0, true).rank_table() == Table{{0, 5}, {1, 1}, {2, 1}});
  CHECK(numbers(SequenceOrder(LoD::from_lengths({{1, 2, 2, 1, 2}}), 0, true).permutation()) == Numbers{1, 2, 4, 0, 3});
}

TEST_CASE("case 9: the permutation and its inverse are the sorted and the unsorted indices") {
  const SequenceOrder order(LoD::from_lengths({{2, 1, 3}}), 0, true);
  CHECK(numbers(order.permutation()) == Numbers{2, 0, 1});
  CHECK(order.inverse() == Numbers{1, 2, 0});
  CHECK(order.indices_map().dtype() == DType::i32);
  CHECK(order.indices_map().dims() == DDim{3});
  CHECK(order.indices_map().to_vector<std::int32_t>() == std::vector<std::int32_t>{2, 0, 1});
  CHECK(numbers(SequenceOrder(LoD::from_lengths({{2, 1}, {3, 1, 2}}), 1, true).permutation()) == Numbers{0, 2, 1});
}

TEST_CASE("the live sequences are a prefix of the ranks when sorted, and any of them when not") {
  const LoD lod = LoD::from_lengths({{1, 3, 0, 2}});
  const SequenceOrder sorted(lod, 0, true);
  CHECK(sorted.live_ranks(0) == Numbers{0, 1, 2});
  CHECK(sorted.live_ranks(2) == Numbers{0});
  const SequenceOrder given(lod, 0, false);
  CHECK(numbers(given.permutation()) == Numbers{0, 1, 2, 3});
  CHECK(given.live_ranks(-1) == Numbers{0, 1, 2, 3});
  CHECK(given.live_ranks(0) == Numbers{0, 1, 3});
  CHECK(given.live_ranks(1) == Numbers{1, 3});
  CHECK(given.live_ranks(3).empty());
  for (const SequenceOrder& order : {sorted, given})
    for (std::int64_t step = -1; step < 5; ++step) CHECK(order.live(step) == static_cast<std::int64_t>(order.live_ranks(step).size()));
  CHECK_THROWS_AS(given.live(-2), IndexError);
}

TEST_CASE("an order keeps the levels at and above its own") {
  const SequenceOrder order(LoD::from_lengths({{2, 0, 1}, {3, 1, 2}, {1, 1, 1, 1, 1, 1}}), 1, true);
  CHECK(order.level() == 1);
  CHECK(order.sorted());
  CHECK(order.lod() == LoD::from_lengths({{2, 0, 1}, {3, 1, 2}}));
  CHECK(order.depth_below() == 1);
}

TEST_CASE("orders of the same sequences are equal") {
  const LoD lod = LoD::from_lengths({{3, 6, 1}});
  const SequenceOrder order(lod, 0, true);
  CHECK(order == SequenceOrder(lod, 0, true));
  CHECK(order != SequenceOrder(lod, 0, false));
  CHECK(order != SequenceOrder(LoD::from_lengths({{3, 6, 2}}), 0, true));
  CHECK(order != SequenceOrder());
  CHECK(order.to_string() == "order of [[3,6,1]] at level 0, longest first: [1,0,2]");
}

TEST_CASE("an order made by default has no sequences and no steps") {
  const SequenceOrder order;
  CHECK(order.sequences() == 0);
  CHECK(order.steps() == 0);
  CHECK(order.live(0) == 0);
  CHECK(order.indices_map().elements() == 0);
}

TEST_CASE("a missing level lists those present") {
  CHECK_THROWS_WITH_AS(SequenceOrder(LoD::from_lengths({{3}}), 1, true),
                       "lod: level 1 is missing: the levels present are 0 (0 is the outermost)", LoDError);
  CHECK_THROWS_AS(SequenceOrder(LoD(), 0, true), LoDError);
}

TEST_CASE("a length that nobody has memory for costs none") {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const SequenceOrder order(LoD::from_lengths({{huge}}), 0, true);
  CHECK(order.steps() == huge);
  CHECK(order.live(huge - 1) == 1);
  CHECK(order.live(huge) == 0);
}
