// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/pad.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

using List = std::vector<float>;

}  // namespace

TEST_CASE("each mode pads as numpy does, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = on.up(Tensor::from<float>({1, 2, 3}));
    const auto run = [&](std::int64_t before, std::int64_t after, PadMode mode) {
      return on.down(pad(x, {before}, {after}, mode, 9, on.stream())).to_vector<float>();
    };
    CHECK(run(2, 1, PadMode::constant) == List{9, 9, 1, 2, 3, 9});
    CHECK(run(2, 2, PadMode::reflect) == List{3, 2, 1, 2, 3, 2, 1});
    CHECK(run(2, 1, PadMode::edge) == List{1, 1, 1, 2, 3, 3});
    CHECK(run(4, 2, PadMode::wrap) == List{3, 1, 2, 3, 1, 2, 3, 1, 2});
    CHECK(run(-1, 2, PadMode::constant) == List{2, 3, 9, 9});
    CHECK(run(0, -2, PadMode::edge) == List{1});
    CHECK(run(1, -1, PadMode::reflect) == List{2, 1, 2});
    CHECK(run(0, 0, PadMode::reflect) == List{1, 2, 3});
  });
}

TEST_CASE("several axes and other dtypes are padded at once") {
  CpuDevice device;
  const Tensor x = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4}, DDim{2, 2});
  CHECK(pad(x, {1, 0}, {0, 1}, PadMode::constant, 0, device.stream(0)).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{0, 0, 0, 1, 2, 0, 3, 4, 0});
  CHECK(pad(x.permute({1, 0}), {1, 1}, {1, 1}, PadMode::reflect, 0, device.stream(0)).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{4, 2, 4, 2, 3, 1, 3, 1, 4, 2, 4, 2, 3, 1, 3, 1});
  CHECK(pad(Tensor(DType::f32, DDim{0, 2}), {0, 1}, {0, 1}, PadMode::reflect, 0, device.stream(0)).dims() == DDim{0, 4});
  CHECK(pad(Tensor(DType::f32, DDim{0}), {2}, {0}, PadMode::constant, 1, device.stream(0)).to_vector<float>() == List{1, 1});
}

TEST_CASE("a shift by more rows than there are gives constants alone") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({1, 2});
  CHECK(pad(x, {3}, {-3}, PadMode::constant, 7, device.stream(0)).to_vector<float>() == List{7, 7});
  CHECK(pad(x, {-3}, {3}, PadMode::constant, 7, device.stream(0)).to_vector<float>() == List{7, 7});
  CHECK(pad(x, {5}, {-4}, PadMode::constant, 7, device.stream(0)).to_vector<float>() == List{7, 7, 7});
  CHECK(pad(x, {1}, {-1}, PadMode::constant, 7, device.stream(0)).to_vector<float>() == List{7, 1});
  CHECK(pad(Tensor::from<float>({1, 2, 3, 4}, DDim{2, 2}), {0, -5}, {1, 4}, PadMode::constant, 7, device.stream(0)).to_vector<float>() ==
        List{7, 7, 7});
}

TEST_CASE("padding of several axes is that of one axis after the other, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(1);
  const Tensor x = random_tensor(random, DType::f32, DDim{3, 300, 70}).permute({1, 0, 2});
  for (const PadMode mode : {PadMode::reflect, PadMode::edge, PadMode::wrap, PadMode::constant}) {
    Tensor wanted = pad(x, {2, 0, 0}, {5, 0, 0}, mode, 3, one.stream(0));
    wanted = pad(wanted, {0, 1, 0}, {0, 2, 0}, mode, 3, one.stream(0));
    wanted = pad(wanted, {0, 0, 60}, {0, 0, -4}, mode, 3, one.stream(0));
    CHECK(same_bits(pad(x, {2, 1, 60}, {5, 2, -4}, mode, 3, one.stream(0)), wanted));
    CHECK(same_bits(pad(x, {2, 1, 60}, {5, 2, -4}, mode, 3, two.stream(0)), wanted));
  }
}

TEST_CASE("counts that an axis cannot give are errors that name axis and counts") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({1, 2, 3});
  CHECK_THROWS_WITH_AS(pad(x, {3}, {0}, PadMode::reflect, 0, device.stream(0)),
                       "pad: axis 0 of 3 elements, 3 before and 0 after: a reflection needs fewer than there are", ArgumentError);
  CHECK_THROWS_AS(pad(x, {-2}, {-2}, PadMode::constant, 0, device.stream(0)), ShapeError);
  for (const int bits : {45, 61, 62}) {
    INFO("2^", bits, " before");
    CHECK_THROWS_AS(pad(x, {std::int64_t{1} << bits}, {0}, PadMode::constant, 0, device.stream(0)), Error);
  }
  CHECK_THROWS_AS(pad(x, {1, 1}, {0, 0}, PadMode::constant, 0, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(pad(Tensor(DType::f32, DDim{0}), {1}, {0}, PadMode::edge, 0, device.stream(0)), ArgumentError);
}

}  // namespace millrace::testing
