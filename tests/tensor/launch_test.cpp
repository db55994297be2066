// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/launch.h>

#include <tuple>

#include <doctest/doctest.h>

#include <millrace/tensor/device.h>

#include "support/random.h"
#include "support/sim_device.h"

using namespace millrace;

namespace {

/// y = x + 1, one element.
void increment(const Tensor& x, const Tensor& y, StreamRef stream) {
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&y},
      [x, y](ThreadTeam&) { *static_cast<float*>(y.raw_mutable()) = *static_cast<const float*>(x.raw()) + 1.0f; }, stream);
}

}  // namespace

TEST_CASE("a launch makes what it writes ready at the stream's position") {
  CpuDevice cpu;
  const Tensor y(DType::f32, DDim{});
  increment(Tensor::scalar(1.0f), y, cpu.stream(0));
  CHECK(y.ready().reached());
  CHECK(y.item() == 2.0);
}

TEST_CASE("reading what nothing wrote, or writing what is frozen, is refused before anything runs") {
  CpuDevice cpu;
  const Tensor fresh(DType::f32, DDim{});
  CHECK_THROWS_AS(increment(fresh, Tensor(DType::f32, DDim{}), cpu.stream(0)), UninitializedError);
  Tensor frozen = Tensor::scalar(5.0f);
  frozen.storage()->freeze();
  CHECK_THROWS_WITH_AS(increment(frozen, frozen, cpu.stream(0)), doctest::Contains("shared and frozen"), ReadOnlyError);
  CHECK(frozen.item() == 5.0);
}

TEST_CASE("operands are lent to work that runs in its caller, and copied for work that runs later") {
  const auto add = [](ThreadTeam&, const Tensor& x, const Tensor& y) {
    *static_cast<float*>(y.raw_mutable()) = *static_cast<const float*>(x.raw()) + 1.0f;
  };
  {
    CpuDevice cpu;
    const Tensor x = Tensor::scalar(1.0f), y(DType::f32, DDim{});
    const Tensor* lent = nullptr;
    launch(
        TensorRefs<1>{&x}, TensorRefs<1>{&y}, std::tie(x, y),
        [&](ThreadTeam& team, const Tensor& from, const Tensor& to) {
          lent = &from;
          add(team, from, to);
        },
        cpu.stream(0));
    CHECK(lent == &x);
    CHECK(y.item() == 2.0);
  }
  testing::SimDevice sim;
  Tensor result;
  {
    const Tensor x = Tensor::scalar(5.0f), y(DType::f32, DDim{}, sim.memory());
    launch(TensorRefs<1>{&x}, TensorRefs<1>{&y}, std::tie(x, y), add, sim.stream(0));
    result = y;
  }
  sim.drain(1);
  CHECK(result.item() == 6.0);
}

TEST_CASE("null tensors are skipped") {
  CpuDevice cpu;
  int runs = 0;
  launch(TensorRefs<2>{nullptr, nullptr}, TensorRefs<1>{nullptr}, [&](ThreadTeam&) { ++runs; }, cpu.stream(0));
  CHECK(runs == 1);
}

TEST_CASE("a chain over many streams gives its value in any order that the points allow") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    testing::SimDevice sim(testing::SimDevice::Options{0, 3, 0});
    Tensor value = Tensor::scalar(0.0f);
    for (int i = 0; i < 10; ++i) {
      const StreamRef stream = sim.stream(static_cast<std::size_t>(random.between(0, 2)));
      const Tensor next(DType::f32, DDim{}, stream.memory());
      increment(value, next, stream);
      value = next;
    }
    CHECK_THROWS_AS(value.item(), NotReadyError);
    sim.drain(seed);
    CHECK(value.item() == 10.0);
  }
}

TEST_CASE("two writes to one tensor from different streams keep their order") {
  for (const std::uint64_t seed : testing::seeds(20)) {
    INFO("seed ", seed);
    testing::SimDevice sim;
    const Tensor y(DType::f32, DDim{}, sim.memory());
    increment(Tensor::scalar(1.0f), y, sim.stream(0));
    increment(Tensor::scalar(10.0f), y, sim.stream(1));
    sim.drain(seed);
    CHECK(y.item() == 11.0);
  }
}
