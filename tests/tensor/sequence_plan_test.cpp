// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/sequence_plan.h>

#include <limits>
#include <numeric>

#include <doctest/doctest.h>

#include "support/random_lod.h"

using namespace millrace;
using Numbers = std::vector<std::int64_t>;
using Flags = std::vector<bool>;

namespace {

LoD lod_of(const char* text) { return LoD::parse(text); }
Numbers counted(std::int64_t rows) {
  Numbers values(static_cast<std::size_t>(rows));
  std::iota(values.begin(), values.end(), std::int64_t{0});
  return values;
}
/// A plan's result for the rows `from`.
Numbers gathered(const Numbers& from, const Numbers& rows) {
  Numbers made;
  for (const std::int64_t row : rows) made.push_back(row < 0 ? -1 : from[static_cast<std::size_t>(row)]);
  return made;
}
/// A plan's result for the rows of several inputs.
Numbers joined(const std::vector<Numbers>& inputs, const JoinPlan& plan) {
  Numbers made(static_cast<std::size_t>(plan.rows), -7);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (std::size_t r = 0; r < inputs[i].size(); ++r) made[static_cast<std::size_t>(plan.targets[i][r])] = inputs[i][r];
  return made;
}
Flags random_flags(testing::Random& random, std::int64_t count) {
  Flags flags;
  for (std::int64_t i = 0; i < count; ++i) flags.push_back(random.coin());
  return flags;
}

/// Calls f(random, lod) for many seeds and depths.
template <class F>
void each_lod(F f) {
  for (const std::uint64_t seed : testing::seeds(200)) {
    testing::Random random(seed);
    const LoD lod = testing::random_lod(random, static_cast<int>(random.between(1, 3)));
    INFO("seed ", seed, ", lod ", lod.to_string());
    f(random, lod);
  }
}

}  // namespace

TEST_CASE("reversed sequences are their items, last first, at any level") {
  CHECK(make_reverse_plan(lod_of("[[3,0,1]]"), -1).rows == Numbers{2, 1, 0, 3});
  const SequencePlan outer = make_reverse_plan(lod_of("[[2,1],[3,1,2]]"), 0);
  CHECK(outer.rows == Numbers{3, 0, 1, 2, 4, 5});
  CHECK(outer.lod == lod_of("[[2,1],[1,3,2]]"));
}

TEST_CASE("reversed twice is the same, whatever the levels") {
  each_lod([](testing::Random&, const LoD& lod) {
    for (int level = -lod.depth(); level < lod.depth(); ++level) {
      const SequencePlan once = make_reverse_plan(lod, level);
      const SequencePlan twice = make_reverse_plan(once.lod, level);
      CHECK(twice.lod == lod);
      CHECK(gathered(once.rows, twice.rows) == counted(lod.rows()));
    }
  });
}

TEST_CASE("slices keep the outer levels, and pieces in order give the sequence again") {
  const Numbers from{0, 1, 2}, size{2, 1, 0};
  const SequencePlan plan = make_slice_plan(lod_of("[[3,2,2]]"), -1, from, size);
  CHECK(plan.rows == Numbers{0, 1, 4});
  CHECK(plan.lod == lod_of("[[2,1,0]]"));
  each_lod([](testing::Random& random, const LoD& lod) {
    const int level = static_cast<int>(random.between(0, lod.depth() - 1));
    Numbers zero, cut, rest;
    for (const std::int64_t length : lod.lengths(level)) {
      zero.push_back(0);
      cut.push_back(random.between(0, length));
      rest.push_back(length - cut.back());
    }
    const SequencePlan head = make_slice_plan(lod, level, zero, cut);
    const SequencePlan tail = make_slice_plan(lod, level, cut, rest);
    const LoD parts[] = {head.lod, tail.lod};
    const JoinPlan whole = make_concat_plan(parts, level);
    CHECK(whole.lod == lod);
    CHECK(joined({head.rows, tail.rows}, whole) == counted(lod.rows()));
  });
}

TEST_CASE("a slice that does not lie in its sequence is an error that names sequence and numbers") {
  const LoD lod = lod_of("[[3,2]]");
  const auto slice = [&](Numbers offsets, Numbers lengths) { make_slice_plan(lod, 0, offsets, lengths); };
  CHECK_THROWS_WITH_AS(slice({0, 1}, {3, 2}), "sequence_slice: expected a piece within sequence 1 of 2 items, found offset 1 and length 2",
                       ArgumentError);
  CHECK_THROWS_AS(slice({-1, 0}, {1, 1}), ArgumentError);
  CHECK_THROWS_AS(slice({0, 0}, {-1, 1}), ArgumentError);
  CHECK_THROWS_AS(slice({1, 0}, {std::numeric_limits<std::int64_t>::max(), 1}), ArgumentError);
  CHECK_THROWS_WITH_AS(slice({0}, {1}), doctest::Contains("each of 2 sequences, found 1 and 1"), ArgumentError);
}

TEST_CASE("repeated sequences keep their inside, and rows without levels are repeated as they are") {
  const Numbers repeats{2, 0, 1};
  const SequencePlan plan = make_repeat_plan(lod_of("[[2,1,1]]"), 4, repeats);
  CHECK(plan.rows == Numbers{0, 1, 0, 1, 3});
  CHECK(plan.lod == lod_of("[[2,2,1]]"));
  CHECK(make_repeat_plan(LoD(), 3, repeats).rows == Numbers{0, 0, 2});
  CHECK_THROWS_AS(make_repeat_plan(LoD(), 2, repeats), LoDError);
  const Numbers negative{1, -1};
  CHECK_THROWS_WITH_AS(make_repeat_plan(LoD(), 2, negative), doctest::Contains("sequence 1 0 times or more, found -1"), ArgumentError);
}

TEST_CASE("kept rows shorten their sequences and leave empty ones") {
  const SequencePlan plan = make_keep_plan(lod_of("[[1,1],[2,1]]"), {true, false, false});
  CHECK(plan.rows == Numbers{0});
  CHECK(plan.lod == lod_of("[[1,1],[1,0]]"));
  CHECK_THROWS_AS(make_keep_plan(lod_of("[[2]]"), {true}), LoDError);
  CHECK_THROWS_AS(make_keep_plan(LoD(), {}), LoDError);
}

TEST_CASE("windows end at the edges of the innermost sequences") {
  CHECK(make_window_plan(lod_of("[[3]]"), -1, 2).rows == Numbers{-1, 0, 0, 1, 1, 2});
  CHECK(make_window_plan(lod_of("[[2,0,1]]"), 0, 2).rows == Numbers{0, 1, 1, -1, 2, -1});
  CHECK(make_window_plan(lod_of("[[1]]"), 5, 1).rows == Numbers{-1});
  CHECK_THROWS_AS(make_window_plan(lod_of("[[1]]"), 0, 0), ArgumentError);
  CHECK_THROWS_AS(make_window_plan(lod_of("[[1]]"), std::numeric_limits<std::int64_t>::max(), 2), OverflowError);
  CHECK(make_window_plan(lod_of("[[1]]"), std::numeric_limits<std::int64_t>::min(), 1).rows == Numbers{-1});
}

TEST_CASE("padded and unpadded is the same, whatever the levels and the room") {
  each_lod([](testing::Random& random, const LoD& lod) {
    const Numbers lengths = lod.lengths(lod.depth() - 1);
    std::int64_t wide = 0;
    for (const std::int64_t length : lengths) wide = std::max(wide, length);
    const bool told = random.coin();
    wide += told ? random.between(0, 3) : 0;
    const SequencePlan padded = make_pad_plan(lod, told ? wide : -1);
    CHECK(padded.rows.size() == lengths.size() * static_cast<std::size_t>(wide));
    const SequencePlan back = make_unpad_plan(lengths, wide, padded.lod);
    CHECK(back.lod == lod);
    CHECK(gathered(padded.rows, back.rows) == counted(lod.rows()));
  });
}

TEST_CASE("what does not fit the room of a padding is an error that names both numbers") {
  CHECK_THROWS_WITH_AS(make_pad_plan(lod_of("[[3,5]]"), 4), "sequence_pad: expected room for the longest sequence of 5 rows, found 4",
                       ArgumentError);
  CHECK_THROWS_AS(make_pad_plan(lod_of("[[0]]"), -2), ArgumentError);
  CHECK_THROWS_AS(make_pad_plan(LoD(), 3), LoDError);
  const Numbers long_one{2, 4}, negative{-1}, one{1};
  CHECK_THROWS_WITH_AS(make_unpad_plan(long_one, 3, LoD()), "sequence_unpad: expected a length from 0 to 3 for sequence 1, found 4",
                       ArgumentError);
  CHECK_THROWS_AS(make_unpad_plan(negative, 3, LoD()), ArgumentError);
  CHECK_THROWS_AS(make_unpad_plan(one, 3, lod_of("[[2]]")), LoDError);
}

TEST_CASE("concatenated sequences hold the items of one input after the other") {
  const LoD two[] = {lod_of("[[2,0,1]]"), lod_of("[[1,2,0]]")};
  const JoinPlan plan = make_concat_plan(two, -1);
  CHECK(plan.lod == lod_of("[[3,2,1]]"));
  CHECK(joined({{0, 1, 2}, {10, 11, 12}}, plan) == Numbers{0, 1, 10, 11, 12, 2});
  const LoD deep[] = {lod_of("[[1,1],[2,1]]"), lod_of("[[0,1],[1]]")};
  CHECK(make_concat_plan(deep, 0).lod == lod_of("[[1,2],[2,1,1]]"));
  const LoD unlike[] = {lod_of("[[2]]"), lod_of("[[1,1]]")};
  CHECK_THROWS_WITH_AS(make_concat_plan(unlike, 0), doctest::Contains("found [[2]] and [[1,1]]"), LoDError);
  const LoD outer[] = {lod_of("[[2,0],[1,1]]"), lod_of("[[1,1],[1,1]]")};
  CHECK_THROWS_AS(make_concat_plan(outer, 1), LoDError);
  const LoD depths[] = {lod_of("[[1]]"), lod_of("[[1],[1]]")};
  CHECK_THROWS_AS(make_concat_plan(depths, 0), LoDError);
  CHECK_THROWS_AS(make_concat_plan({}, 0), ArgumentError);
}

TEST_CASE("split by a mask and merged is the same, at every level and for rows") {
  each_lod([](testing::Random& random, const LoD& lod) {
    const LoD some = random.between(0, 5) == 0 ? LoD() : lod;
    for (int level = 0; level <= some.depth(); ++level) {
      INFO("level ", level);
      const Flags mask = random_flags(random, level == some.depth() ? lod.rows() : some.sequences(level));
      const auto [set, unset] = make_mask_split_plan(some, lod.rows(), level, mask);
      const auto rows = [](const SequencePlan& plan) { return static_cast<std::int64_t>(plan.rows.size()); };
      set.lod.validate(rows(set));
      unset.lod.validate(rows(unset));
      const JoinPlan whole = make_mask_merge_plan(unset.lod, rows(unset), set.lod, rows(set), level, mask);
      CHECK(whole.lod == some);
      CHECK(joined({unset.rows, set.rows}, whole) == counted(lod.rows()));
    }
  });
}

TEST_CASE("a mask chooses sequences of its level, and outer levels shrink with it") {
  const auto [set, unset] = make_mask_split_plan(lod_of("[[2,1],[3,1,2]]"), 6, 1, {true, false, true});
  CHECK(set.rows == Numbers{0, 1, 2, 4, 5});
  CHECK(set.lod == lod_of("[[1,1],[3,2]]"));
  CHECK(unset.rows == Numbers{3});
  CHECK(unset.lod == lod_of("[[1,0],[1]]"));
}

TEST_CASE("a mask of another size, or halves that do not fit it, are errors that name both") {
  const LoD lod = lod_of("[[2,1]]");
  CHECK_THROWS_WITH_AS(make_mask_split_plan(lod, 3, 0, {true}), "split_by_mask: expected a mask of 2 sequences at level 0, found 1",
                       LoDError);
  CHECK_THROWS_WITH_AS(make_mask_split_plan(lod, 3, 1, {true}), "split_by_mask: expected a mask of 3 rows, found 1", LoDError);
  CHECK_THROWS_AS(make_mask_split_plan(lod, 3, 2, {}), LoDError);
  CHECK_THROWS_AS(make_mask_split_plan(lod, 4, 0, {true, true}), LoDError);
  CHECK_THROWS_AS(make_mask_merge_plan(LoD(), 1, LoD(), 1, 0, {true, true}), LoDError);
  CHECK_THROWS_AS(make_mask_merge_plan(LoD(), 1, lod, 3, 0, {true, true, false}), LoDError);
  // As many as the mask says, but in the wrong sequences.
  CHECK_THROWS_WITH_AS(make_mask_merge_plan(lod_of("[[1,0]]"), 1, lod_of("[[0,1]]"), 1, 1, {true, false}),
                       doctest::Contains("expected 1 sequences set in sequence 0"), LoDError);
}

TEST_CASE("a level counts from the outermost, or from the innermost when it is negative") {
  const LoD lod = lod_of("[[2,1],[3,1,2]]");
  CHECK(sequence_level(lod, -1) == 1);
  CHECK(sequence_level(lod, -2) == 0);
  CHECK(row_offsets(lod, 0) == Numbers{0, 4, 6});
  CHECK(row_offsets(lod, 1) == Numbers{0, 3, 4, 6});
  CHECK_THROWS_WITH_AS(sequence_level(lod, -3), doctest::Contains("level -3 is missing: the levels present are 0, 1"), LoDError);
  CHECK_THROWS_AS(sequence_level(LoD(), -1), LoDError);
}
