// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/ragged.h>

#include <numeric>

#include <doctest/doctest.h>

#include "support/random.h"

using namespace millrace;
using Numbers = std::vector<std::int64_t>;
using Steps = std::vector<Numbers>;

namespace {

Steps steps_of(const UnpackPlan& plan) {
  Steps steps;
  for (std::int64_t step = 0; step < plan.steps(); ++step) steps.emplace_back(plan.step_rows(step).begin(), plan.step_rows(step).end());
  return steps;
}

/// The packed steps of `plan`, which were unpacked: for each row of the result the input's row.
PackPlan packed(const UnpackPlan& plan) {
  Numbers rows;
  for (std::int64_t step = 0; step < plan.steps(); ++step) rows.push_back(static_cast<std::int64_t>(plan.step_rows(step).size()));
  return make_pack_plan(plan.order, rows, plan.step_lods);
}
Numbers round_trip(const UnpackPlan& unpacked, const PackPlan& plan) {
  Numbers rows;
  for (const std::int64_t source : plan.sources) rows.push_back(unpacked.sources[static_cast<std::size_t>(source)]);
  return rows;
}
Numbers counted(std::int64_t rows) {
  Numbers values(static_cast<std::size_t>(rows));
  std::iota(values.begin(), values.end(), std::int64_t{0});
  return values;
}

void check_identity(const LoD& lod, int level, bool sorted) {
  INFO("lod ", lod.to_string(), " level ", level, " sorted ", sorted);
  const UnpackPlan unpacked = make_unpack_plan(lod, level, sorted, lod.rows());
  const PackPlan plan = packed(unpacked);
  CHECK(plan.lod == lod);
  CHECK(round_trip(unpacked, plan) == counted(lod.rows()));
}

}  // namespace

TEST_CASE("case 1: steps of three sequences, longest first, and back") {
  const LoD lod = LoD::from_lengths({{3, 6, 1}});
  const UnpackPlan plan = make_unpack_plan(lod, 0, true, 10);
  CHECK(steps_of(plan) == Steps{{3, 0, 9}, {4, 1}, {5, 2}, {6}, {7}, {8}});
  CHECK(plan.step_offsets == Numbers{0, 3, 5, 7, 8, 9, 10});
  for (const LoD& step : plan.step_lods) CHECK(step.empty());
  CHECK_FALSE(plan.identity);
  CHECK(packed(plan).lod == lod);
  CHECK(round_trip(plan, packed(plan)) == counted(10));
}

TEST_CASE("case 2: an empty sequence comes back, and so do only empty ones") {
  const UnpackPlan plan = make_unpack_plan(LoD::from_lengths({{3, 6, 0, 1}}), 0, true, 10);
  CHECK(steps_of(plan) == Steps{{3, 0, 9}, {4, 1}, {5, 2}, {6}, {7}, {8}});
  CHECK(packed(plan).lod == LoD::from_lengths({{3, 6, 0, 1}}));
  const UnpackPlan none = make_unpack_plan(LoD::from_lengths({{0, 0}}), 0, true, 0);
  CHECK(none.steps() == 0);
  CHECK(packed(none).sources.empty());
  CHECK(packed(none).lod == LoD::from_lengths({{0, 0}}));
}

TEST_CASE("case 3: steps of sub-sequences keep the levels below") {
  const UnpackPlan plan = make_unpack_plan(LoD::from_lengths({{2, 3}, {3, 6, 2, 6, 3}}), 0, true, 20);
  CHECK(steps_of(plan) == Steps{{9, 10, 0, 1, 2}, {11, 12, 13, 14, 15, 16, 3, 4, 5, 6, 7, 8}, {17, 18, 19}});
  REQUIRE(plan.steps() == 3);
  CHECK(plan.step_lods[0] == LoD::from_lengths({{2, 3}}));
  CHECK(plan.step_lods[1] == LoD::from_lengths({{6, 6}}));
  CHECK(plan.step_lods[2] == LoD::from_lengths({{3}}));
  CHECK(packed(plan).lod == LoD::from_lengths({{2, 3}, {3, 6, 2, 6, 3}}));
  CHECK(round_trip(plan, packed(plan)) == counted(20));
}

TEST_CASE("case 5: a batch shrinks to a prefix") {
  const SequenceOrder order(LoD::from_lengths({{1, 2, 3}}), 0, true);
  CHECK(shrink_rows(order, -1, 0).rows == Numbers{0, 1, 2});
  CHECK(shrink_rows(order, 0, 1).rows == Numbers{0, 1});
  CHECK(shrink_rows(order, 1, 2).rows == Numbers{0});
  CHECK(shrink_rows(order, 0, 2).rows == Numbers{0});
  CHECK(shrink_rows(order, 0, 3).rows.empty());
  CHECK(shrink_rows(order, 0, 2).prefix);
}

TEST_CASE("an unsorted batch shrinks to the rows that live, wherever they are") {
  const SequenceOrder order(LoD::from_lengths({{1, 3, 2}}), 0, false);
  CHECK(shrink_rows(order, 0, 1).rows == Numbers{1, 2});
  CHECK_FALSE(shrink_rows(order, 0, 1).prefix);
  CHECK(shrink_rows(order, 1, 2).rows == Numbers{0});
  CHECK(shrink_rows(order, 1, 2).prefix);
}

TEST_CASE("case 6: a static input is re-ordered like the batch and shrinks with it") {
  const SequenceOrder order(LoD::from_lengths({{2, 1, 3}}), 0, true);
  const LoD fixed = LoD::from_lengths({{1, 2, 3}});  // rows 0 | 1 2 | 3 4 5
  const RowSelection boot = reorder_rows(order, 6, fixed);
  CHECK(boot.rows == Numbers{3, 4, 5, 0, 1, 2});
  CHECK(boot.lod == LoD::from_lengths({{3, 1, 2}}));
  CHECK(shrink_rows(order, -1, 0, 6, boot.lod).lod == LoD::from_lengths({{3, 1, 2}}));
  CHECK(shrink_rows(order, -1, 1, 6, boot.lod).lod == LoD::from_lengths({{3, 1}}));
  CHECK(shrink_rows(order, -1, 1, 6, boot.lod).rows == Numbers{0, 1, 2, 3});
  CHECK(shrink_rows(order, 0, 2, 6, boot.lod).lod == LoD::from_lengths({{3}}));
}

TEST_CASE("case 9: unsorted steps keep the caller's order") {
  const UnpackPlan plan = make_unpack_plan(LoD::from_lengths({{1, 3, 2}}), 0, false, 6);
  CHECK(steps_of(plan) == Steps{{0, 1, 4}, {2, 5}, {3}});
  CHECK(round_trip(plan, packed(plan)) == counted(6));
}

TEST_CASE("case 9: an inner level is sorted across the outer sequences, and pack restores both levels") {
  const LoD lod = LoD::from_lengths({{2, 1}, {3, 1, 2}});
  const UnpackPlan plan = make_unpack_plan(lod, 1, true, 6);
  CHECK(steps_of(plan) == Steps{{0, 4, 3}, {1, 5}, {2}});
  CHECK(packed(plan).lod == lod);
  CHECK(round_trip(plan, packed(plan)) == counted(6));
}

TEST_CASE("case 9: sequences packed by time") {
  const Numbers data{4, 5, 6, 1, 2, 3};
  const UnpackPlan plan = make_unpack_plan(LoD::from_lengths({{2, 1, 3}}), 0, true, 6);
  Numbers by_time;
  for (const std::int64_t row : plan.sources) by_time.push_back(data[static_cast<std::size_t>(row)]);
  CHECK(by_time == Numbers{1, 4, 6, 2, 5, 3});
  Numbers batch_sizes;
  for (std::int64_t step = 0; step < plan.steps(); ++step) batch_sizes.push_back(plan.order.live(step));
  CHECK(batch_sizes == Numbers{3, 2, 1});
}

TEST_CASE("a plan that moves nothing says so") {
  const UnpackPlan single = make_unpack_plan(LoD::from_lengths({{4}}), 0, true, 4);
  CHECK(single.identity);
  CHECK(packed(single).identity);
  CHECK(make_unpack_plan(LoD::from_lengths({{1, 1, 0, 1}}), 0, false, 3).identity);
  CHECK_FALSE(make_unpack_plan(LoD::from_lengths({{2, 2}}), 0, false, 4).identity);
}

TEST_CASE("a packed row names its step and its row there") {
  const PackPlan plan = make_pack_plan(SequenceOrder(LoD::from_lengths({{2, 1, 3}}), 0, true));
  using At = std::pair<std::int64_t, std::int64_t>;
  CHECK(plan.at(0) == At{0, 1});
  CHECK(plan.at(1) == At{1, 1});
  CHECK(plan.at(2) == At{0, 2});
  CHECK(plan.at(5) == At{2, 0});
  CHECK_THROWS_AS(plan.at(6), IndexError);
  CHECK_THROWS_AS(plan.at(-1), IndexError);
}

TEST_CASE("steps that do not fit their order are errors that name the step and both numbers") {
  const SequenceOrder order(LoD::from_lengths({{3, 6, 1}}), 0, true);
  CHECK_THROWS_WITH_AS(make_pack_plan(order, Numbers{3, 2}), doctest::Contains("expected 6 steps"), LoDError);
  CHECK_THROWS_WITH_AS(make_pack_plan(order, Numbers{3, 2, 3, 1, 1, 1}),
                       "pack: expected 2 rows at step 2, one for each that lives, found 3", LoDError);
  const SequenceOrder pair(LoD::from_lengths({{2, 1}}), 0, true);
  const std::vector<LoD> good{LoD::from_lengths({{1, 2}}), LoD::from_lengths({{4}})};
  CHECK(make_pack_plan(pair, Numbers{3, 4}, good).lod == LoD::from_lengths({{2, 1}, {1, 4, 2}}));
  CHECK_THROWS_AS(make_pack_plan(pair, Numbers{3, 5}, good), LoDError);
  CHECK_THROWS_AS(make_pack_plan(pair, Numbers{3, 4}, std::vector<LoD>{good[0]}), LoDError);
  CHECK_THROWS_AS(make_pack_plan(pair, Numbers{3, 1}, std::vector<LoD>{good[0], LoD()}), LoDError);
  CHECK_THROWS_WITH_AS(make_pack_plan(pair, Numbers{3, 4}, std::vector<LoD>{LoD::from_lengths({{3}}), good[1]}),
                       "pack: expected 2 sequences at step 0, one for each that lives, found 1", LoDError);
}

TEST_CASE("levels and rows that are not there are refused before anything else") {
  const LoD lod = LoD::from_lengths({{3, 6, 1}});
  CHECK_THROWS_WITH_AS(make_unpack_plan(lod, 1, true, 10), doctest::Contains("level 1 is missing: the levels present are 0"), LoDError);
  CHECK_THROWS_WITH_AS(make_unpack_plan(lod, 0, true, 11), doctest::Contains("describes 10 rows, found 11"), LoDError);
  CHECK_THROWS_AS(make_unpack_plan(LoD(), 0, true, 3), LoDError);
  CHECK_THROWS_AS(make_unpack_plan(lod, 0, true, 10).step_rows(6), IndexError);
}

TEST_CASE("a batch of another size, or an earlier step, is refused by shrink and re-order") {
  const SequenceOrder order(LoD::from_lengths({{1, 2, 3}}), 0, true);
  CHECK_THROWS_WITH_AS(shrink_rows(order, 0, 1, 4), "shrink: the batch of step 0: expected 3 rows, found 4", LoDError);
  CHECK_THROWS_WITH_AS(shrink_rows(order, 2, 1), "shrink: expected a later step than 2, found 1", ArgumentError);
  CHECK_THROWS_AS(shrink_rows(order, -2, 1), IndexError);
  CHECK_THROWS_WITH_AS(reorder_rows(order, 2), doctest::Contains("expected 3 rows, found 2"), LoDError);
  CHECK_THROWS_AS(reorder_rows(order, 2, LoD::from_lengths({{1, 1}})), LoDError);
  CHECK(reorder_rows(order).rows == Numbers{2, 1, 0});
}

TEST_CASE("sequences are selected with their rows") {
  const LoD lod = LoD::from_lengths({{2, 0, 1}, {3, 1, 2}});
  const RowSelection chosen = select_sequences(Numbers{2, 0}, 6, lod);
  CHECK(chosen.rows == Numbers{4, 5, 0, 1, 2, 3});
  CHECK(chosen.lod == LoD::from_lengths({{1, 2}, {2, 3, 1}}));
  CHECK(select_sequences(Numbers{0, 1}, 6, lod).prefix);
  CHECK(select_sequences(Numbers{2, 2}, 3).rows == Numbers{2, 2});
  CHECK_THROWS_AS(select_sequences(Numbers{3}, 3), IndexError);
  CHECK_THROWS_AS(select_sequences(Numbers{3}, 6, lod), IndexError);
  CHECK_THROWS_AS(select_sequences(Numbers{0}, 7, lod), LoDError);
}

TEST_CASE("pack undoes unpack at every level, sorted and unsorted, with empty sequences") {
  check_identity(LoD::from_lengths({{}}), 0, true);
  check_identity(LoD::from_lengths({{0, 0}, {}}), 0, true);
  check_identity(LoD::from_lengths({{0, 2}, {0, 0}, {}}), 0, false);
  for (const std::uint64_t seed : testing::seeds(300)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    LoD lod;
    std::int64_t sequences = random.between(0, 5);
    for (std::int64_t level = random.between(1, 3); level > 0; --level) {
      Numbers lengths;
      for (std::int64_t i = 0; i < sequences; ++i) lengths.push_back(random.between(0, 4));
      lod = lod.append(lengths);
      sequences = lod.rows();
    }
    for (int level = 0; level < lod.depth(); ++level)
      for (const bool sorted : {true, false}) check_identity(lod, level, sorted);
  }
}

TEST_CASE("what shrink keeps is the batch of the later step") {
  for (const std::uint64_t seed : testing::seeds(200)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    Numbers lengths(static_cast<std::size_t>(random.between(1, 6)));
    for (std::int64_t& length : lengths) length = random.between(0, 5);
    const LoD lod = LoD::from_lengths({lengths});
    const SequenceOrder order(lod, 0, random.coin());
    for (std::int64_t from = -1; from < order.steps(); ++from)
      for (std::int64_t to = from; to <= order.steps(); ++to) {
        const Numbers before = order.live_ranks(from);
        Numbers kept;
        for (const std::int64_t row : shrink_rows(order, from, to).rows) kept.push_back(before[static_cast<std::size_t>(row)]);
        CHECK(kept == order.live_ranks(to));
        if (order.sorted()) CHECK(shrink_rows(order, from, to).prefix);
      }
  }
}

TEST_CASE("reversed, each sequence goes from its end, and packing turns it round again") {
  const UnpackPlan plan = make_unpack_plan(LoD::from_lengths({{3, 6, 1}}), 0, true, 10, true);
  CHECK(steps_of(plan) == Steps{{8, 2, 9}, {7, 1}, {6, 0}, {5}, {4}, {3}});
  CHECK(plan.order.to_string() == "order of [[3,6,1]] at level 0, longest first, from the end: [1,0,2]");
  CHECK(packed(plan).lod == LoD::from_lengths({{3, 6, 1}}));
  CHECK(round_trip(plan, packed(plan)) == counted(10));
  const LoD deep = LoD::from_lengths({{2, 0, 3}, {3, 6, 2, 0, 3}});
  for (const int level : {0, 1})
    for (const bool sorted : {true, false}) {
      const UnpackPlan unpacked = make_unpack_plan(deep, level, sorted, 14, true);
      const PackPlan back = packed(unpacked);
      CHECK(back.lod == deep);
      CHECK(round_trip(unpacked, back) == counted(14));
    }
  CHECK_FALSE(plan.order == make_unpack_plan(LoD::from_lengths({{3, 6, 1}}), 0, true, 10).order);
}

TEST_CASE("the last row of each sequence in the slab, and none for an empty one") {
  const LoD lod = LoD::from_lengths({{3, 6, 0, 1}});
  for (const bool sorted : {true, false})
    for (const bool reverse : {true, false}) {
      const UnpackPlan plan = make_unpack_plan(lod, 0, sorted, 10, reverse);
      const Numbers last = last_sources(plan.order);
      REQUIRE(last.size() == 4);
      CHECK(plan.sources[static_cast<std::size_t>(last[0])] == (reverse ? 0 : 2));
      CHECK(plan.sources[static_cast<std::size_t>(last[1])] == (reverse ? 3 : 8));
      CHECK(last[2] == -1);
      CHECK(plan.sources[static_cast<std::size_t>(last[3])] == 9);
    }
  CHECK(last_sources(SequenceOrder()).empty());
}
