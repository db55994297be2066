// SPDX-License-Identifier: Apache-2.0
// The listings of "RNN 变长输入设计", variable-length input without padding (PaddlePaddle design document of 2017, 004 in docs/origins.md),
// each quoted above its running form.
#include <numeric>

#include <doctest/doctest.h>

#include <millrace/tensor/lod_tensor.h>

using namespace millrace;

namespace {
Tensor counted(std::int64_t rows) {
  std::vector<float> values(static_cast<std::size_t>(rows));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::from(values, DDim{rows});
}
}  // namespace

TEST_CASE("design 004: three sentences of 2, 3 and 4 are one mini-batch of 9 rows with offsets 0,2,5,9") {
  // > 比如，长度分别为2,3,4的三个句子会存储为一个size为9的`mini-batch`
  // > 额外会有一个`SeqPosVar`，存储句子的结构，比如offest：`0,2,5,9`
  const LoDTensor batch(counted(9), LoD::from_lengths({{2, 3, 4}}));
  CHECK(batch.rows() == 9);
  const SeqPos positions = batch.lod().to_seq_pos();
  CHECK(positions.dim == 1);
  REQUIRE(positions.startPoses.size() == 1);
  CHECK(*positions.startPoses[0] == std::vector<int>{0, 2, 5, 9});
}

TEST_CASE("design 004: SeqPos") {
  // > struct SeqPos {
  // >   int dim{1};
  // >   std::vector<std::shared_ptr<std::vector<int>> startPoses;
  // > };
  SeqPos positions;
  CHECK(positions.dim == 1);
  positions.startPoses.push_back(std::make_shared<std::vector<int>>(std::vector<int>{0, 2, 5, 9}));
  CHECK(LoD::from_seq_pos(positions) == LoD::from_lengths({{2, 3, 4}}));
}

TEST_CASE("design 004: TensorWithSequence") {
  // > struct TensorWithSequence {
  // >   Tensor* tensor;
  // >   std::shared_ptr<SeqPos> seq_pos;
  // > }
  // Both members are shared: the rows by their storage, the structure by pointer.
  const Tensor rows = counted(9);
  const TensorWithSequence x(rows, LoD::from_lengths({{2, 3, 4}}));
  const TensorWithSequence same = x;
  CHECK(same.tensor().shares_storage_with(rows));
  CHECK(same.lod().offsets(0).data() == x.lod().offsets(0).data());
}

TEST_CASE("design 004: taken apart level by level, n levels become n - 1") {
  // > 当拆解成 n-1 维序列时， `dim=n-1`，startPoses 去除第 1 维序列信息，为每个次级序列单独抽取出对应的信息组成新的 `SeqPos`
  const LoDTensor paragraphs(counted(9), LoD::from_lengths({{2, 1}, {2, 3, 4}}));
  const std::vector<LoDTensor> parts = paragraphs.peel();
  REQUIRE(parts.size() == 2);
  const SeqPos first = parts[0].lod().to_seq_pos();
  const SeqPos second = parts[1].lod().to_seq_pos();
  CHECK(first.dim == 1);
  CHECK(*first.startPoses[0] == std::vector<int>{0, 2, 5});
  CHECK(*second.startPoses[0] == std::vector<int>{0, 4});
  CHECK(parts[1].tensor().to_vector<float>() == std::vector<float>{5, 6, 7, 8});
}
