// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

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
    const Dataset data = read_ragged(folder / name, Targets::sequence);
    CHECK(data.x.lod().to_string() == "[[2,0,0]]");
    CHECK(data.x.tensor().to_vector<float>() == std::vector<float>{1, 2, 3, 4});
    CHECK(data.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0, 0});
  }
  CHECK_THROWS_WITH_AS(read_ragged(folder / "a.npz", Targets::row), doctest::Contains("expected 2 targets, one for each row, found 3"),
                       ShapeError);
}

TEST_CASE("numbers of one axis are rows of one number, integers of any width are integers, and values take the dtype of the rows") {
  const ScratchFolder folder;
  NpzTensors all{{"rows", Tensor::from<double>({1, 2, 3})},
                 {"lengths", Tensor::from<std::uint8_t>({1, 2})},
                 {"labels", Tensor::from<float>({0.5, 0.25})}};
  write_npz(folder / "a.npz", all);
  const Dataset values = read_ragged(folder / "a.npz", Targets::sequence);
  CHECK(values.x.tensor().dims() == DDim{3, 1});
  CHECK(values.targets.dims() == DDim{2, 1});
  CHECK(values.targets.to_vector<double>() == std::vector<double>{0.5, 0.25});
  all.insert_or_assign("rows", Tensor::from<std::int8_t>({5, 0, 2}));
  write_npz(folder / "b.npz", all);
  const Dataset words = read_ragged(folder / "b.npz", Targets::sequence);
  CHECK(words.x.tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{5, 0, 2});
  CHECK(words.targets.dtype() == DType::f32);
  all.insert_or_assign("lengths", Tensor::from<float>({1, 2}));
  write_npz(folder / "c.npz", all);
  CHECK_THROWS_WITH_AS(read_ragged(folder / "c.npz", Targets::sequence),
                       doctest::Contains("c.npz, lengths: expected integers, found f32[2]"), DTypeError);
  all.insert_or_assign("lengths", Tensor::from<std::int64_t>({1, 2}));
  all.insert_or_assign("labels", Tensor::from<std::int64_t>({0, -1}));
  write_npz(folder / "d.npz", all);
  CHECK_THROWS_WITH_AS(read_ragged(folder / "d.npz", Targets::sequence),
                       doctest::Contains("d.npz: expected classes from 0 on, found -1 as target 1"), IndexError);
}

TEST_CASE("lengths that are not those of the rows are an error that says how many rows there are") {
  const ScratchFolder folder;
  write_npz(folder / "a.npz", {{"rows", Tensor::from<float>({1, 2, 3})},
                               {"lengths", Tensor::from<std::int64_t>({1, 3})},
                               {"labels", Tensor::from<std::int64_t>({0, 1})}});
  CHECK_THROWS_WITH_AS(read_ragged(folder / "a.npz", Targets::sequence),
                       doctest::Contains("lengths: expected 3 rows in all, as the tensor 'rows' has, found 4 (in "), LoDError);
}

TEST_CASE("rows of booleans are an error that says what they are") {
  const ScratchFolder folder;
  Tensor rows(DType::boolean, {3, 2});
  std::fill_n(rows.mutable_data<bool>(), 6, true);
  rows.storage()->mark_written();
  write_npz(folder / "a.npz",
            {{"rows", rows}, {"lengths", Tensor::from<std::int64_t>({1, 2})}, {"labels", Tensor::from<std::int64_t>({0, 1})}});
  CHECK_THROWS_WITH_AS(read_ragged(folder / "a.npz", Targets::sequence),
                       doctest::Contains("a.npz, rows: expected floating values, or integers as numbers of words, found bool[3, 2]"),
                       DTypeError);
}

TEST_CASE("a label that the dtype of the values does not hold is an error that says the number as it was given") {
  const ScratchFolder folder;
  write_npz(folder / "a.npz", {{"rows", Tensor::from<float>({1, 2, 3})},
                               {"lengths", Tensor::from<std::int64_t>({1, 2})},
                               {"labels", Tensor::from<double>({0.5, 1, 2, -1e300}).reshape({2, 2})}});
  CHECK_THROWS_WITH_AS(read_ragged(folder / "a.npz", Targets::sequence),
                       doctest::Contains("a.npz, labels: row 1, element 1: expected a finite number that f32 holds, found -1e+300"),
                       ArgumentError);
}

TEST_CASE("a sequence of tokens for each sequence has lengths of its own, and may be empty") {
  const ScratchFolder folder;
  NpzTensors all{{"rows", Tensor::from<std::int64_t>({4, 5, 6})},
                 {"lengths", Tensor::from<std::int64_t>({1, 2})},
                 {"labels", Tensor::from<std::int32_t>({3, 1, 2})},
                 {"label_lengths", Tensor::from<std::int64_t>({3, 0})}};
  write_npz(folder / "a.npz", all);
  const Dataset data = read_ragged(folder / "a.npz", Targets::tokens);
  CHECK(data.has_tokens());
  CHECK(data.target_lod.to_string() == "[[3,0]]");
  CHECK(data.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 1, 2});
  const auto refused = [&](const char* name, const Tensor& lengths, const char* why) {
    all.insert_or_assign("label_lengths", lengths);
    write_npz(folder / name, all);
    CHECK_THROWS_WITH_AS(read_ragged(folder / name, Targets::tokens), doctest::Contains(why), LoDError);
  };
  refused("b.npz", Tensor::from<std::int64_t>({3}),
          "expected one level of target tokens with 2 sequences, as the rows have, found 1 levels with 1");
  refused("c.npz", Tensor::from<std::int64_t>({3, 1}), "c.npz");
  all.erase("label_lengths");
  write_npz(folder / "d.npz", all);
  CHECK_THROWS_WITH_AS(read_ragged(folder / "d.npz", Targets::tokens),
                       doctest::Contains("expected a tensor 'label_lengths', found labels, lengths, rows"), ArgumentError);
}

TEST_CASE("a tensor that is missing or does not fit is named with the file") {
  const ScratchFolder folder;
  const Tensor rows = Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2});
  write_npz(folder / "a.npz", {{"rows", rows}, {"length", Tensor::from<std::int64_t>({2})}});
  CHECK_THROWS_WITH_AS(read_ragged(folder / "a.npz", Targets::sequence),
                       doctest::Contains("expected a tensor 'lengths', found length, rows"), ArgumentError);
  write_npz(folder / "b.npz", {{"rows", rows}, {"lengths", Tensor::from<std::int64_t>({3})}, {"labels", Tensor::from<std::int64_t>({0})}});
  CHECK_THROWS_WITH_AS(read_ragged(folder / "b.npz", Targets::sequence), doctest::Contains("b.npz"), LoDError);
  CHECK_THROWS_WITH_AS(
      read_ragged(folder / "c.txt", Targets::sequence),
      doctest::Contains("c.txt: expected a file whose name ends in .ts, .csv, .tsv, .npz or .safetensors, or format = \"text\" for "
                        "its bytes, found the ending '.txt'"),
      UnsupportedError);
  CHECK_THROWS_WITH_AS(read_ragged(folder.path(), Targets::sequence), doctest::Contains("for its bytes, found a folder"), UnsupportedError);
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
