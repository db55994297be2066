// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/one_hot.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("a new axis holds on at the place of each index, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor index = on.up(Tensor::from<std::int64_t>({1, -1, 5}));
    const Tensor last = on.down(one_hot(index, 3, -1, 0, 1, DType::f32, on.stream()));
    CHECK(last.dims() == DDim{3, 3});
    CHECK(last.to_vector<float>() == std::vector<float>{0, 1, 0, 0, 0, 1, 0, 0, 0});
    const Tensor first = on.down(one_hot(index, 3, 0, 7, 8, DType::i32, on.stream()));
    CHECK(first.to_vector<std::int32_t>() == std::vector<std::int32_t>{7, 7, 7, 8, 7, 7, 7, 8, 7});
  });
}

TEST_CASE("no depth and no indices give no elements, a negative depth is an error") {
  CpuDevice device;
  CHECK(one_hot(Tensor::from<std::int64_t>({1}), 0, -1, 0, 1, DType::f32, device.stream(0)).dims() == DDim{1, 0});
  CHECK(one_hot(Tensor(DType::i32, DDim{0}), 2, 0, 0, 1, DType::f32, device.stream(0)).dims() == DDim{2, 0});
  CHECK_THROWS_AS(one_hot(Tensor::from<std::int64_t>({1}), -1, -1, 0, 1, DType::f32, device.stream(0)), ArgumentError);
  CHECK_THROWS_AS(one_hot(Tensor::from<std::int64_t>({1}), 2, 2, 0, 1, DType::f32, device.stream(0)), IndexError);
}

}  // namespace millrace::testing
