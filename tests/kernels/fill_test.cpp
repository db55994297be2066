// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/fill.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("tensors are filled in any dtype on every device") {
  each_backend([](DeviceUnderTest& on) {
    for (const DType dtype :
         {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean}) {
      const Tensor ones_here = on.down(ones(DDim{2, 3}, dtype, on.stream()));
      CHECK(ones_here.dtype() == dtype);
      CHECK(reference::values(ones_here).at == std::vector<double>(6, 1.0));
      CHECK(reference::values(on.down(zeros(DDim{}, dtype, on.stream()))).at == std::vector<double>{0.0});
      CHECK(on.down(full(DDim{0, 4}, 7, dtype, on.stream())).dims() == DDim{0, 4});
    }
  });
}

TEST_CASE("a view is filled and its surroundings stay") {
  CpuDevice device;
  Tensor x = zeros(DDim{3, 3}, DType::f32, device.stream(0));
  Tensor column = x.slice(1, 1, 2);
  fill(column, 2.5, device.stream(0));
  CHECK(x.to_vector<float>() == std::vector<float>{0, 2.5f, 0, 0, 2.5f, 0, 0, 2.5f, 0});
}

TEST_CASE("arange counts to its limit, in both directions") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  CHECK(arange(4, DType::i64, stream).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(arange(1, 2, 0.25, DType::f64, stream).to_vector<double>() == std::vector<double>{1, 1.25, 1.5, 1.75});
  CHECK(arange(5, 0, -2, DType::i32, stream).to_vector<std::int32_t>() == std::vector<std::int32_t>{5, 3, 1});
  CHECK(arange(5, 0, 2, DType::f32, stream).dims() == DDim{0});
  CHECK_THROWS_AS(arange(0, 5, 0, DType::f32, stream), ArgumentError);
  CHECK_THROWS_AS(arange(0, 5, 1, DType::boolean, stream), ArgumentError);
  CHECK_THROWS_AS(arange(0, std::numeric_limits<double>::infinity(), 1, DType::f32, stream), ArgumentError);
}

}  // namespace millrace::testing
