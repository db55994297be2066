// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/format.h>

#include <fmt/ranges.h>

#include <doctest/doctest.h>

#include <millrace/tensor/copy.h>

#include "support/sim_device.h"

using namespace millrace;

TEST_CASE("small values print as their text") {
  CHECK(fmt::format("{}", DType::bf16) == "bf16");
  CHECK(fmt::format("{} {} {}", Place(CpuPlace{}), CudaPlace{1}, BackendPlace{"sim", 0}) == "cpu cuda:1 sim:0");
  CHECK(fmt::format("{} {}", make_dim(2, 3), make_ddim({2, 3, 4})) == "[2, 3] [2, 3, 4]");
  CHECK(fmt::format("{}", LoD::from_lengths({{2, 1}, {3, 1, 2}})) == "[[2,1],[3,1,2]]");
  CHECK(fmt::format("{}", SequenceOrder(LoD::from_lengths({{1, 2}}), 0, true)) == "order of [[1,2]] at level 0, longest first: [1,0]");
  CHECK(fmt::format("{} {}", float16(1.5f), bfloat16(-2.0f)) == "1.5 -2");
}

TEST_CASE("a formatter takes the format of a string") {
  CHECK(fmt::format("{:>6}|{:<5}|", DType::f32, Place(CpuPlace{})) == "   f32|cpu  |");
}

TEST_CASE("a tensor prints its first values in row-major order") {
  const Tensor tensor = Tensor::from(std::vector<float>{1, 2.5, 3, 4, 5, 6}, DDim{2, 3});
  CHECK(fmt::format("{}", tensor) == "f32[2, 3] on cpu {1, 2.5, 3, 4, 5, 6}");
  CHECK(fmt::format("{}", tensor.permute({1, 0})) == "f32[3, 2] on cpu {1, 4, 2.5, 5, 3, 6}");
  CHECK(fmt::format("{}", make_darray(DDim{9}, 1)) == "i32[9] on cpu {1, 1, 1, 1, 1, 1, 1, 1, …}");
  CHECK(fmt::format("{}", Tensor::scalar(true)) == "bool[] on cpu {true}");
  CHECK(fmt::format("{}", Tensor::from<std::int8_t>({65, -1})) == "i8[2] on cpu {65, -1}");
  CHECK(fmt::format("{}", Tensor::from<float16>({float16(0.5f)})) == "f16[1] on cpu {0.5}");
  CHECK(fmt::format("{}", Tensor()) == "f32[0] on cpu {}");
  CHECK(fmt::format("{}", Array<float, 2>(tensor)) == "f32[2, 3] on cpu {1, 2.5, 3, 4, 5, 6}");
}

TEST_CASE("a tensor that cannot be read prints why") {
  CHECK(fmt::format("{}", Tensor(DType::f32, DDim{2})) == "f32[2] on cpu {not written}");
  testing::SimDevice sim;
  const Tensor pending = clone(Tensor::from({1, 2}), sim.stream(0));
  CHECK(fmt::format("{}", pending) == "i32[2] on sim:0 {not ready}");
  sim.drain(1);
  CHECK(fmt::format("{}", pending) == "i32[2] on sim:0 {1, 2}");
  const auto timeline = std::make_shared<Timeline>();
  const Tensor failed = Tensor::from({1, 2});
  failed.storage()->set_ready(Point(timeline, 1));
  timeline->fail(std::make_exception_ptr(Error("broken")));
  CHECK(fmt::format("{}", failed) == "i32[2] on cpu {failed}");
}

TEST_CASE("a LoD tensor prints its values and its lengths") {
  const LoDTensor x(Tensor::from({1, 2, 3}), LoD::from_lengths({{1, 2}}));
  CHECK(fmt::format("{}", x) == "i32[3] on cpu {1, 2, 3} with [[1,2]]");
}

TEST_CASE("a point prints how far its timeline is") {
  const auto timeline = std::make_shared<Timeline>();
  timeline->advance(2);
  CHECK(fmt::format("{}", Point()) == "point 0, reached");
  CHECK(fmt::format("{}", Point(timeline, 2)) == "point 2, reached");
  CHECK(fmt::format("{}", Point(timeline, 3)) == "point 3 of a timeline at 2");
  timeline->fail(std::make_exception_ptr(Error("broken")));
  CHECK(fmt::format("{}", Point(timeline, 3)) == "point 3 of a timeline that failed at 2");
}
