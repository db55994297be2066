// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/lod.h>

#include <limits>
#include <string>

#include <doctest/doctest.h>

#include "support/random.h"

using namespace millrace;
using Levels = std::vector<LoD::Level>;
constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();

namespace {

/// 0 to 3 levels of lengths 0 to 4, from the outermost in.
LoD random_lod(testing::Random& random) {
  LoD lod;
  std::int64_t sequences = random.between(0, 4);
  for (std::int64_t level = random.between(0, 3); level > 0; --level) {
    LoD::Level lengths;
    for (std::int64_t i = 0; i < sequences; ++i) lengths.push_back(random.between(0, 4));
    lod = lod.append(lengths);
    sequences = lod.rows();
  }
  return lod;
}

}  // namespace

TEST_CASE("a LoD made by default has no levels and fits any number of rows") {
  const LoD lod;
  CHECK(lod.depth() == 0);
  CHECK(lod.empty());
  CHECK(lod.to_string() == "[]");
  CHECK(lod.absolute_offsets().empty());
  CHECK_NOTHROW(lod.validate(0));
  CHECK_NOTHROW(lod.validate(9));
  CHECK_THROWS_WITH_AS(lod.rows(), doctest::Contains("there are no levels"), LoDError);
}

TEST_CASE("case 7: offsets of three levels describe 5 rows and not 9") {
  const LoD lod = LoD::from_offsets({{0, 2}, {0, 1, 3}, {0, 2, 4, 5}});
  CHECK(lod.depth() == 3);
  CHECK(lod.rows() == 5);
  CHECK_NOTHROW(lod.validate(5));
  CHECK_THROWS_WITH_AS(lod.validate(9), doctest::Contains("describes 5 rows, found 9"), LoDError);
  CHECK(lod.absolute_offsets() == Levels{{0, 5}, {0, 2, 5}, {0, 2, 4, 5}});
}

TEST_CASE("case 7: offsets that do not fit together are refused, each with its reason") {
  CHECK_THROWS_WITH_AS(LoD::from_offsets({{0, 2}, {0, 1, 4}, {0, 2, 4, 5}}), "lod: level 1 ends at 4, but level 2 has 3 sequences",
                       LoDError);
  CHECK_THROWS_WITH_AS(LoD::from_offsets({{0, 3, 2}}), "lod: level 0: expected offsets that never decrease, found 3 before 2", LoDError);
  CHECK_THROWS_WITH_AS(LoD::from_offsets({{1, 2}}), "lod: level 0: expected a first offset of 0, found 1", LoDError);
  CHECK_THROWS_WITH_AS(LoD::from_offsets({{}}), "lod: level 0: expected at least the offset 0, found no offsets", LoDError);
  CHECK_NOTHROW(LoD::from_offsets({}));
  CHECK_THROWS_WITH_AS(LoD::from_lengths({{2, 2}}).validate(5), "lod: [[2,2]] describes 4 rows, found 5", LoDError);
}

TEST_CASE("hostile offsets and lengths are errors, never undefined") {
  CHECK_THROWS_AS(LoD::from_offsets({{0, huge}, {0, 1}}), LoDError);
  CHECK_THROWS_AS(LoD::from_offsets({{0, 1}, {}}), LoDError);
  CHECK_THROWS_AS(LoD::from_offsets({{}, {}}), LoDError);
  CHECK_THROWS_AS(LoD::from_offsets({{0, std::numeric_limits<std::int64_t>::min()}}), LoDError);
  CHECK_THROWS_AS(LoD::from_lengths({{-1}}), LoDError);
  CHECK_THROWS_WITH_AS(LoD::from_lengths({{huge, 1}}), doctest::Contains("does not fit 64 bits"), LoDError);
  CHECK_THROWS_AS(LoD::from_lengths({{2}, {1}}), LoDError);
  CHECK(LoD::from_lengths({{huge}}).rows() == huge);
  CHECK_THROWS_AS(LoD::from_lengths({{huge}}).validate(-1), LoDError);
  CHECK_THROWS_AS(LoD::from_lengths({{huge}}).select(std::vector<std::int64_t>{0, 0}), LoDError);
}

TEST_CASE("a level that is missing is an error that lists those present") {
  const LoD two = LoD::from_lengths({{2, 1}, {3, 1, 2}});
  CHECK_THROWS_WITH_AS(two.offsets(2), "lod: level 2 is missing: the levels present are 0, 1 (0 is the outermost)", LoDError);
  CHECK_THROWS_WITH_AS(two.lengths(-1), "lod: level -1 is missing: the levels present are 0, 1 (0 is the outermost)", LoDError);
  CHECK_THROWS_WITH_AS(LoD().sequences(0), "lod: level 0 is missing: there are no levels", LoDError);
}

TEST_CASE("lengths and offsets describe the same structure") {
  const LoD lod = LoD::from_lengths({{2, 1}, {3, 1, 2}});
  CHECK(lod == LoD::from_offsets({{0, 2, 3}, {0, 3, 4, 6}}));
  CHECK(lod != LoD::from_lengths({{1, 2}, {3, 1, 2}}));
  CHECK(lod != LoD());
  CHECK(lod.sequences(0) == 2);
  CHECK(lod.sequences(1) == 3);
  CHECK(lod.rows() == 6);
  CHECK(lod.lengths(1) == LoD::Level{3, 1, 2});
  CHECK(lod.absolute_offsets() == Levels{{0, 4, 6}, {0, 3, 4, 6}});
}

TEST_CASE("empty sequences are legal at every level") {
  const LoD lod = LoD::from_lengths({{0, 2, 0}, {0, 3}});
  CHECK(lod.rows() == 3);
  CHECK(lod.row_range(0, 0, 1) == std::pair<std::int64_t, std::int64_t>{0, 0});
  CHECK(lod.row_range(0, 1, 2) == std::pair<std::int64_t, std::int64_t>{0, 3});
  CHECK(LoD::from_lengths({{}}).sequences(0) == 0);
  CHECK(LoD::from_lengths({{}, {}}).rows() == 0);
}

TEST_CASE("row ids name the sequence of each row") {
  const LoD lod = LoD::from_lengths({{2, 0, 1}, {3, 1, 2}});
  CHECK(lod.row_ids(0) == LoD::Level{0, 0, 0, 0, 2, 2});
  CHECK(lod.row_ids(1) == LoD::Level{0, 0, 0, 1, 2, 2});
}

TEST_CASE("row ids make a level, empty sequences included") {
  CHECK(LoD::from_row_ids({0, 0, 2}, 4) == LoD::from_lengths({{2, 0, 1, 0}}));
  CHECK(LoD::from_row_ids({}, 2) == LoD::from_lengths({{0, 0}}));
  CHECK(LoD::from_row_ids({}, 0) == LoD::from_lengths({{}}));
  const LoD lod = LoD::from_lengths({{3, 0, 1, 2}});
  CHECK(LoD::from_row_ids(lod.row_ids(0), 4) == lod);
  CHECK_THROWS_WITH_AS(LoD::from_row_ids({0, 2, 1}, 4),
                       "row ids: expected ids that never decrease, of 4 sequences, found 1 at row 2 behind 2", LoDError);
  CHECK_THROWS_WITH_AS(LoD::from_row_ids({4}, 4), "row ids: expected ids that never decrease, of 4 sequences, found 4 at row 0", LoDError);
  CHECK_THROWS_AS(LoD::from_row_ids({-1, 0}, 4), LoDError);
  CHECK_THROWS_AS(LoD::from_row_ids({0}, 0), LoDError);
  CHECK_THROWS_WITH_AS(LoD::from_row_ids({}, -1), "row ids: expected a number of sequences of 0 or more, found -1", LoDError);
  CHECK_THROWS_AS(LoD::from_row_ids({}, huge), OutOfMemoryError);
}

TEST_CASE("a slice keeps the level and what lies below it") {
  const LoD lod = LoD::from_lengths({{2, 3}, {3, 6, 2, 6, 3}});
  CHECK(lod.slice(0, 1, 2) == LoD::from_lengths({{3}, {2, 6, 3}}));
  CHECK(lod.slice(1, 1, 3) == LoD::from_lengths({{6, 2}}));
  CHECK(lod.slice(0, 1, 1) == LoD::from_lengths({{}, {}}));
  CHECK(lod.row_range(1, 1, 3) == std::pair<std::int64_t, std::int64_t>{3, 11});
  CHECK_THROWS_WITH_AS(lod.slice(0, 1, 3), doctest::Contains("[1, 3) of 2 sequences at level 0"), IndexError);
  CHECK_THROWS_AS(lod.slice(0, -1, 1), IndexError);
  CHECK_THROWS_AS(lod.slice(1, 2, 1), IndexError);
  CHECK_THROWS_AS(lod.slice(2, 0, 1), LoDError);
}

TEST_CASE("a selection that few numbers make larger than any memory ends before it begins") {
  constexpr std::int64_t many = std::int64_t{1} << 20;
  const LoD lod = LoD::from_lengths({{many}, LoD::Level(static_cast<std::size_t>(many), 0)});
  const std::vector<std::int64_t> chosen(static_cast<std::size_t>(many), 0);
  CHECK_THROWS_WITH_AS(lod.select(chosen), doctest::Contains("found 1099511627776"), OutOfMemoryError);
}

TEST_CASE("a selection takes outermost sequences in any order, with what lies below") {
  const LoD lod = LoD::from_lengths({{2, 0, 1}, {3, 1, 2}});
  CHECK(lod.select(std::vector<std::int64_t>{2, 0, 1}) == LoD::from_lengths({{1, 2, 0}, {2, 3, 1}}));
  CHECK(lod.select(std::vector<std::int64_t>{}) == LoD::from_lengths({{}, {}}));
  CHECK_THROWS_AS(lod.select(std::vector<std::int64_t>{3}), IndexError);
  CHECK_THROWS_AS(lod.select(std::vector<std::int64_t>{-1}), IndexError);
}

TEST_CASE("levels are appended inside and erased outside") {
  const LoD outer = LoD::from_lengths({{2, 1}});
  const LoD both = outer.append({3, 1, 2});
  CHECK(both == LoD::from_lengths({{2, 1}, {3, 1, 2}}));
  CHECK(both.erase_outermost() == LoD::from_lengths({{3, 1, 2}}));
  CHECK(both.levels(0, 1) == outer);
  CHECK(both.levels(1, 1).empty());
  CHECK(LoD().append({4}) == LoD::from_lengths({{4}}));
  CHECK_THROWS_WITH_AS(outer.append({3, 1}), doctest::Contains("expected 3 lengths to append inside [[2,1]], found 2"), LoDError);
  CHECK_THROWS_AS(outer.append({3, 1, -2}), LoDError);
  CHECK_THROWS_AS(LoD().erase_outermost(), LoDError);
  CHECK_THROWS_AS(both.levels(1, 3), LoDError);
}

TEST_CASE("a LoD prints as lengths and reads them back") {
  CHECK(LoD::from_lengths({{2, 1}, {3, 1, 2}}).to_string() == "[[2,1],[3,1,2]]");
  CHECK(LoD::parse("[[2,1],[3,1,2]]") == LoD::from_lengths({{2, 1}, {3, 1, 2}}));
  CHECK(LoD::parse(" [ [ 2 , 1 ] ,\n [3,1,2] ] ") == LoD::from_lengths({{2, 1}, {3, 1, 2}}));
  CHECK(LoD::parse("[]") == LoD());
  CHECK(LoD::parse("[[]]") == LoD::from_lengths({{}}));
}

TEST_CASE("text that is no LoD is an error that says where") {
  for (const char* text :
       {"", "[", "[[", "[[1", "[[1,", "[[1]", "[[1]]]", "[1]", "[[1],]", "[[a]]", "[[1.5]]", "[[99999999999999999999]]", "[[1 2]]", "{}"}) {
    INFO("text ", text);
    CHECK_THROWS_AS(LoD::parse(text), ParseError);
  }
  CHECK_THROWS_WITH_AS(LoD::parse("[[1;2]]"), doctest::Contains("expected ',' at character 3, found ';2]]'"), ParseError);
  CHECK_THROWS_AS(LoD::parse(std::string_view("[[1]\0]", 6)), ParseError);
  CHECK_THROWS_AS(LoD::parse("[[-1]]"), LoDError);
  CHECK_THROWS_AS(LoD::parse("[[2],[1]]"), LoDError);
}

TEST_CASE("any LoD survives text, offsets and the designs' form unchanged") {
  for (const std::uint64_t seed : testing::seeds(200)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const LoD lod = random_lod(random);
    INFO("lod ", lod.to_string());
    CHECK(LoD::parse(lod.to_string()) == lod);
    CHECK(LoD::from_seq_pos(lod.to_seq_pos()) == lod);
    Levels offsets;
    for (int level = 0; level < lod.depth(); ++level) offsets.emplace_back(lod.offsets(level).begin(), lod.offsets(level).end());
    CHECK(LoD::from_offsets(offsets) == lod);
  }
}

TEST_CASE("random offsets are either consistent or a LoD error") {
  int accepted = 0;
  for (const std::uint64_t seed : testing::seeds(2000)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    Levels levels(static_cast<std::size_t>(random.between(1, 2)));
    for (LoD::Level& level : levels)
      for (std::int64_t i = random.between(0, 3); i > 0; --i)
        level.push_back(level.empty() ? random.between(0, 9) / 9 : random.between(-1, 3));
    try {
      const LoD lod = LoD::from_offsets(levels);
      ++accepted;
      for (int level = 0; level < lod.depth(); ++level)
        CHECK(lod.offsets(level).back() == (level + 1 < lod.depth() ? lod.sequences(level + 1) : lod.rows()));
      CHECK(lod.slice(0, 0, lod.sequences(0)) == lod);
    } catch (const LoDError&) {
    }
  }
  CHECK(accepted > 0);
}

TEST_CASE("the brief text of a LoD is that of a short one, and ends behind 200 characters") {
  CHECK(LoD::from_lengths({{2, 1}, {3, 1, 2}}).brief() == "[[2,1],[3,1,2]]");
  CHECK(LoD().brief() == "[]");
  const LoD wide = LoD::from_lengths({LoD::Level(100, 10)});
  CHECK(wide.brief() == wide.to_string().substr(0, 200) + "…");
  const LoD deep = LoD::from_lengths(std::vector<LoD::Level>(60, LoD::Level{1}));
  CHECK(deep.brief() == deep.to_string().substr(0, 200) + "…");
  for (const std::int64_t count : {97, 98, 99}) {
    const LoD edge = LoD::from_lengths({LoD::Level(static_cast<std::size_t>(count), 1)});
    CHECK(edge.brief() == (edge.to_string().size() > 200 ? edge.to_string().substr(0, 200) + "…" : edge.to_string()));
  }
}

TEST_CASE("the sequences of more rows than memory holds are an error that says how many") {
  CHECK_THROWS_WITH_AS(LoD::from_lengths({{huge}}).row_ids(0),
                       "lod: level 0: expected at most 68719476736 sequences or rows, found 9223372036854775807", OutOfMemoryError);
}
