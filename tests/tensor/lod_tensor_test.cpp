// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/lod_tensor.h>

#include <numeric>

#include <doctest/doctest.h>

using namespace millrace;

namespace {

/// Rows 0 … count−1, one value each.
Tensor counted(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::from(values, DDim{count, 1});
}

std::vector<float> values(const LoDTensor& x) { return x.tensor().to_vector<float>(); }

}  // namespace

TEST_CASE("a tensor is a LoD tensor without levels") {
  const LoDTensor x = counted(3);
  CHECK(x.lod().empty());
  CHECK(x.dims() == DDim{3, 1});
  CHECK(x.dtype() == DType::f32);
  CHECK(x.rows() == 3);
  CHECK(x.ready().reached());
  CHECK(x.place() == Place(CpuPlace{}));
  CHECK(LoDTensor().rows() == 0);
  CHECK_THROWS_AS(LoDTensor(Tensor::scalar(1.0f)).rows(), ShapeError);
}

TEST_CASE("a LoD that does not describe the rows is refused with both numbers") {
  CHECK_NOTHROW(LoDTensor(counted(6), LoD::from_lengths({{2, 1}, {3, 1, 2}})));
  CHECK_THROWS_WITH_AS(LoDTensor(counted(5), LoD::from_lengths({{2, 2}})), doctest::Contains("describes 4 rows, found 5"), LoDError);
  CHECK_THROWS_AS(LoDTensor(Tensor::scalar(1.0f), LoD::from_lengths({{1}})), LoDError);
  CHECK_THROWS_AS(LoDTensor::validate(counted(1), LoD::from_lengths({{2}})), LoDError);
}

TEST_CASE("a slice by level shares the rows") {
  const LoDTensor x(counted(20), LoD::from_lengths({{2, 3}, {3, 6, 2, 6, 3}}));
  const LoDTensor second = x.slice(0, 1, 2);
  CHECK(second.lod() == LoD::from_lengths({{3}, {2, 6, 3}}));
  CHECK(second.rows() == 11);
  CHECK(values(second).front() == 9.0f);
  CHECK(second.tensor().shares_storage_with(x.tensor()));
  CHECK(values(x.slice(1, 2, 3)) == std::vector<float>{9, 10});
  CHECK_THROWS_AS(x.slice(0, 0, 3), IndexError);
  CHECK_THROWS_AS(x.slice(2, 0, 1), LoDError);
}

TEST_CASE("peeling gives one view per outermost sequence, each with one level less") {
  const LoDTensor x(counted(6), LoD::from_lengths({{2, 0, 1}, {3, 1, 2}}));
  const std::vector<LoDTensor> parts = x.peel();
  REQUIRE(parts.size() == 3);
  CHECK(values(parts[0]) == std::vector<float>{0, 1, 2, 3});
  CHECK(parts[0].lod() == LoD::from_lengths({{3, 1}}));
  CHECK(parts[1].rows() == 0);
  CHECK(parts[1].lod() == LoD::from_lengths({{}}));
  CHECK(values(parts[2]) == std::vector<float>{4, 5});
  for (const LoDTensor& part : parts) CHECK(part.tensor().shares_storage_with(x.tensor()));
  const std::vector<LoDTensor> rows = parts[0].peel();
  REQUIRE(rows.size() == 2);
  CHECK(rows[1].lod().empty());
  CHECK(values(rows[1]) == std::vector<float>{3});
  CHECK_THROWS_AS(rows[1].peel(), LoDError);
}

TEST_CASE("grouping adds the level that peeling takes off") {
  const LoDTensor rows = counted(6);
  const LoDTensor once = rows.group({3, 1, 2});
  CHECK(once.lod() == LoD::from_lengths({{3, 1, 2}}));
  CHECK(once.group({2, 1}).lod() == LoD::from_lengths({{2, 1}, {3, 1, 2}}));
  CHECK_THROWS_AS(once.group({2, 2}), LoDError);
  CHECK_THROWS_AS(rows.group({5}), LoDError);
}

TEST_CASE("a LoD tensor prints its type and its lengths") {
  CHECK(LoDTensor(counted(6), LoD::from_lengths({{2, 1}, {3, 1, 2}})).to_string() == "f32[6, 1] on cpu with [[2,1],[3,1,2]]");
  CHECK(LoDTensor(counted(2)).to_string() == "f32[2, 1] on cpu");
}
