// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <millrace/runtime/files/npz.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/training/ragged_file.h>

#include "support/bytes.h"

using namespace millrace;
using namespace millrace::training;
using millrace::testing::ScratchFolder;

TEST_CASE("rows, lengths and labels are read from both kinds of file") {
  const ScratchFolder folder;
  const Tensor rows = Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2});
  const Tensor lengths = Tensor::from<std::int32_t>({2, 0, 0}), labels = Tensor::from<std::int32_t>({1, 0, 0});
  write_npz(folder / "a.npz", {{"rows", rows}, {"lengths", lengths}, {"labels", labels}});
  write_safetensors(folder / "a.safetensors", {{{"rows", rows}, {"lengths", lengths}, {"labels", labels}}, {}});
  for (const char* name : {"a.npz", "a.safetensors"}) {
    const Dataset data = read_ragged(folder / name, false);
    CHECK(data.x.lod().to_string() == "[[2,0,0]]");
    CHECK(data.x.tensor().to_vector<float>() == std::vector<float>{1, 2, 3, 4});
    CHECK(data.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0, 0});
  }
  CHECK_THROWS_WITH_AS(read_ragged(folder / "a.npz", true), doctest::Contains("expected 2 targets, one for each row, found 3"), ShapeError);
}

TEST_CASE("a tensor that is missing or does not fit is named with the file") {
  const ScratchFolder folder;
  const Tensor rows = Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2});
  write_npz(folder / "a.npz", {{"rows", rows}, {"length", Tensor::from<std::int64_t>({2})}});
  CHECK_THROWS_WITH_AS(read_ragged(folder / "a.npz", false), doctest::Contains("expected a tensor 'lengths', found length, rows"),
                       ArgumentError);
  write_npz(folder / "b.npz", {{"rows", rows}, {"lengths", Tensor::from<std::int64_t>({3})}, {"labels", Tensor::from<std::int64_t>({0})}});
  CHECK_THROWS_WITH_AS(read_ragged(folder / "b.npz", false), doctest::Contains("b.npz"), LoDError);
  CHECK_THROWS_AS(read_ragged(folder / "c.txt", false), UnsupportedError);
}

TEST_CASE("a text is cut into sequences whose targets are the bytes that follow") {
  const Dataset data = parse_characters("abcab", "t", 3);
  CHECK(data.classes == std::vector<std::string>{"a", "b", "c"});
  CHECK(data.x.lod().to_string() == "[[3,1]]");
  CHECK(data.x.tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 0});
  CHECK(data.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 0, 1});
  data.validate();
  CHECK(parse_characters("ba", "t", 3, data.classes).x.tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{1});
  CHECK_THROWS_WITH_AS(parse_characters("abd", "t", 3, data.classes), doctest::Contains("t, byte 2"), ParseError);
  CHECK(parse_characters("", "t", 3).sequences() == 0);
  CHECK_THROWS_AS(parse_characters("abd", "t", 0), ArgumentError);
}
