// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/concat.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/tensor/copy.h>

namespace millrace::testing {

TEST_CASE("what split takes apart concat puts together, along any axis, on every device") {
  each_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(10)) {
      INFO("seed ", seed);
      Random random(seed);
      const int axis = static_cast<int>(random.between(0, 2));
      std::vector<std::int64_t> sizes;
      DDim dims{2, 3, 4};
      dims[axis] = 0;
      for (int part = 0; part < 4; ++part) dims[axis] += sizes.emplace_back(random.between(0, 3));
      const Tensor x = random_tensor(random, DType::f32, dims);
      const Tensor here = on.up(x);
      const std::vector<Tensor> parts = split(here, axis, sizes);
      for (std::size_t i = 0; i < parts.size(); ++i) CHECK(parts[i].dim(axis) == sizes[i]);
      CHECK(same_bits(on.down(concat(parts, axis - 3, on.stream())), x));
    }
  });
}

TEST_CASE("row-major parts are put together as views are, whether they are small or not") {
  each_backend([](DeviceUnderTest& on) {
    Random random(3);
    for (const std::int64_t inner : {1, 5, 3000})
      for (int axis = 0; axis < 3; ++axis) {
        DDim dims{2, 6, inner};
        if (axis == 2) dims[2] = 3 * inner;
        const Tensor x = random_tensor(random, DType::f32, dims), here = on.up(x);
        const std::int64_t extent = dims[axis];
        std::vector<Tensor> parts = split(here, axis, {1, 0, extent - 1});
        for (Tensor& part : parts)
          if (part.elements() > 0) part = clone(part, on.stream());
        CHECK(same_bits(on.down(concat(parts, axis, on.stream())), x));
      }
  });
}

TEST_CASE("split gives views of the whole") {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4});
  const std::vector<Tensor> parts = split(x, 0, {1, 3});
  CHECK(parts[1].data<float>() == x.data<float>() + 1);
}

TEST_CASE("sizes that do not add up and parts that do not fit are errors that name both") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({1, 2, 3, 4});
  CHECK_THROWS_WITH_AS(split(x, 0, {1, 2}), "split: expected sizes that add up to 4 along axis 0, found [1, 2]", ShapeError);
  CHECK_THROWS_AS(split(x, 0, {5, -1}), ShapeError);
  CHECK_THROWS_AS(concat({}, 0, device.stream(0)), ArgumentError);
  CHECK_THROWS_WITH_AS(concat({x.reshape({2, 2}), x.reshape({4, 1})}, 0, device.stream(0)),
                       "concat: expected extents that agree but for axis 0, found [2, 2] and [4, 1]", ShapeError);
  CHECK_THROWS_AS(concat({x, Tensor::from<double>({1})}, 0, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(concat({x}, 1, device.stream(0)), IndexError);
  Tensor bytes(DType::u8, DDim{4});
  CHECK_THROWS_AS(concat({x}, 0, bytes, device.stream(0)), DTypeError);
}

}  // namespace millrace::testing
