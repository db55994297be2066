// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/seq_pos.h>

#include <climits>

#include <doctest/doctest.h>

#include <millrace/tensor/lod.h>

using namespace millrace;

namespace {
std::shared_ptr<std::vector<int>> positions(std::vector<int> values) { return std::make_shared<std::vector<int>>(std::move(values)); }
}  // namespace

TEST_CASE("the designs' form holds one vector of offsets for each level, outermost first") {
  const SeqPos made = LoD::from_lengths({{2, 1}, {3, 1, 2}}).to_seq_pos();
  CHECK(made.dim == 2);
  REQUIRE(made.startPoses.size() == 2);
  CHECK(*made.startPoses[0] == std::vector<int>{0, 2, 3});
  CHECK(*made.startPoses[1] == std::vector<int>{0, 3, 4, 6});
  CHECK(LoD::from_seq_pos(made) == LoD::from_lengths({{2, 1}, {3, 1, 2}}));
}

TEST_CASE("no levels is a dim of 0") {
  CHECK(LoD().to_seq_pos().dim == 0);
  CHECK(LoD::from_seq_pos(LoD().to_seq_pos()) == LoD());
}

TEST_CASE("positions that contradict themselves are LoD errors") {
  CHECK_THROWS_WITH_AS(LoD::from_seq_pos(SeqPos{}), doctest::Contains("expected 1 levels, as dim says, found 0"), LoDError);
  CHECK_THROWS_WITH_AS(LoD::from_seq_pos(SeqPos{1, {nullptr}}), doctest::Contains("level 0 is null"), LoDError);
  CHECK_THROWS_AS(LoD::from_seq_pos(SeqPos{1, {positions({0, 3, 2})}}), LoDError);
  CHECK_THROWS_AS(LoD::from_seq_pos(SeqPos{-1, {}}), LoDError);
}

TEST_CASE("an offset that does not fit an int is a LoD error") {
  const std::int64_t most = INT_MAX;
  CHECK(LoD::from_lengths({{most}}).to_seq_pos().startPoses[0]->back() == INT_MAX);
  CHECK_THROWS_AS(LoD::from_lengths({{most, 1}}).to_seq_pos(), LoDError);
}
