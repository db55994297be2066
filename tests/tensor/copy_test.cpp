// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/copy.h>

#include <numeric>

#include <doctest/doctest.h>

#include <millrace/tensor/device.h>

#include "support/random.h"
#include "support/sim_device.h"

using namespace millrace;

namespace {
Tensor counted(const DDim& dims) {
  std::vector<float> values(static_cast<std::size_t>(dims.elements()));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::from(values, dims);
}
}  // namespace

TEST_CASE("a copy has the elements of its source and storage of its own") {
  CpuDevice cpu;
  const Tensor src = counted({2, 3});
  const Tensor dst = clone(src, cpu.stream(0));
  CHECK(dst.to_vector<float>() == src.to_vector<float>());
  CHECK_FALSE(dst.shares_storage_with(src));
  CHECK(dst.ready().reached());
}

TEST_CASE("a copy goes between any strides") {
  CpuDevice cpu;
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const DDim dims{random.between(0, 3), random.between(1, 4), random.between(1, 3)};
    std::vector<int> iteration{0, 1, 2};
    std::swap(iteration[0], iteration[static_cast<std::size_t>(random.between(0, 2))]);
    std::swap(iteration[1], iteration[static_cast<std::size_t>(random.between(0, 2))]);
    const Tensor src = counted(dims).permute(iteration);
    const DDim room{src.dim(0) + 2, src.dim(1), src.dim(2) + 1};
    const Tensor whole = make_darray(room, -1.0f);
    const Tensor dst = whole.slice(0, 1, src.dim(0) + 1).slice(2, 0, src.dim(2));
    copy(src, dst, cpu.stream(0));
    CHECK(dst.to_vector<float>() == src.to_vector<float>());
    std::int64_t untouched = 0;
    for (const float value : whole.to_vector<float>()) untouched += value == -1.0f ? 1 : 0;
    CHECK(untouched == whole.elements() - src.elements());
  }
}

TEST_CASE("a copy of many bytes is the same with two threads") {
  CpuDevice one(1);
  CpuDevice two(2);
  const Tensor src = counted({1 << 20});
  CHECK(clone(src, one.stream(0)).to_vector<float>() == clone(src, two.stream(0)).to_vector<float>());
}

TEST_CASE("a copy waits for its source, and its readers wait for it") {
  testing::SimDevice sim;
  const Tensor src = counted({4});
  const Tensor first = clone(src, sim.stream(0));
  const Tensor second = clone(first, sim.stream(1));
  CHECK_THROWS_AS(second.to_vector<float>(), NotReadyError);
  CHECK(second.place() == Place(BackendPlace{"sim", 0}));
  sim.drain(7);
  CHECK(second.to_vector<float>() == src.to_vector<float>());
}

TEST_CASE("contiguous elements are not copied again") {
  CpuDevice cpu;
  const Tensor src = counted({2, 3});
  CHECK(contiguous(src, cpu.stream(0)).shares_storage_with(src));
  const Tensor turned = contiguous(src.permute({1, 0}), cpu.stream(0));
  CHECK_FALSE(turned.shares_storage_with(src));
  CHECK(turned.is_contiguous());
  CHECK(turned.to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
}

TEST_CASE("tensors of different dtype or extents are not copied") {
  CpuDevice cpu;
  CHECK_THROWS_WITH_AS(copy(counted({2}), Tensor(DType::f64, DDim{2}), cpu.stream(0)),
                       "copy: expected the dtype of f64[2] on cpu, found f32[2] on cpu", DTypeError);
  CHECK_THROWS_AS(copy(counted({2}), Tensor(DType::f32, DDim{3}), cpu.stream(0)), ShapeError);
}

TEST_CASE("a copy from nothing, or to frozen storage, is refused") {
  CpuDevice cpu;
  CHECK_THROWS_AS(copy(Tensor(DType::f32, DDim{2}), counted({2}), cpu.stream(0)), UninitializedError);
  CHECK_THROWS_AS(copy(counted({2}), counted({2}).read_only(), cpu.stream(0)), ReadOnlyError);
}

TEST_CASE("overlapping views are refused, the same view copies to itself") {
  CpuDevice cpu;
  const Tensor x = counted({6});
  CHECK_THROWS_AS(copy(x.rows(0, 4), x.rows(1, 5), cpu.stream(0)), ArgumentError);
  CHECK_NOTHROW(copy(x.rows(0, 4), x.rows(0, 4), cpu.stream(0)));
  copy(x.rows(0, 3), x.rows(3, 6), cpu.stream(0));
  CHECK(x.to_vector<float>() == std::vector<float>{0, 1, 2, 0, 1, 2});
}
