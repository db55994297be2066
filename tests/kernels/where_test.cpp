// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/where.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("where chooses element by element, stretching all three operands, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor condition = on.up(Tensor::from(std::vector<bool>{true, false}, DDim{2, 1}));
    const Tensor a = on.up(Tensor::from<std::int8_t>({1, 2, 3})), b = on.up(Tensor::scalar(std::int8_t{9}));
    const Tensor out = on.down(where(condition, a, b, on.stream()));
    CHECK(out.dims() == DDim{2, 3});
    CHECK(out.to_vector<std::int8_t>() == std::vector<std::int8_t>{1, 2, 3, 9, 9, 9});
  });
}

TEST_CASE("a condition that is no bool, dtypes that differ and shapes that do not fit are errors") {
  CpuDevice device;
  const Tensor yes = Tensor::from<bool>({true, true}), x = Tensor::from<float>({1, 2});
  CHECK_THROWS_WITH_AS(where(x, x, x, device.stream(0)), "where: expected bool for condition, found f32[2] on cpu", DTypeError);
  CHECK_THROWS_AS(where(yes, x, Tensor::from<double>({1, 2}), device.stream(0)), DTypeError);
  CHECK_THROWS_AS(where(yes, x, Tensor::from<float>({1, 2, 3}), device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
