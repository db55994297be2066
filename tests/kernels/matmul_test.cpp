// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/matmul.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("the extents of a product follow numpy") {
  CHECK(matmul_dims({2, 3}, {3, 4}) == DDim{2, 4});
  CHECK(matmul_dims({3}, {3, 4}) == DDim{4});
  CHECK(matmul_dims({2, 3}, {3}) == DDim{2});
  CHECK(matmul_dims({3}, {3}) == DDim{});
  CHECK(matmul_dims({5, 1, 2, 3}, {7, 3, 4}) == DDim{5, 7, 2, 4});
  CHECK(matmul_dims({0, 3}, {3, 4}) == DDim{0, 4});
  CHECK_THROWS_WITH_AS(matmul_dims({2, 3}, {4, 5}), "matmul: [2, 3] and [4, 5] do not fit each other", ShapeError);
  CHECK_THROWS_AS(matmul_dims({2, 2, 3}, {3, 3, 4}), ShapeError);
  CHECK_THROWS_AS(matmul_dims({}, {3}), ShapeError);
}

TEST_CASE("each matrix of a batch is multiplied, and a batch of 1 is stretched, on every device") {
  each_product_backend([](DeviceUnderTest& on) {
    Random random(2);
    for (const DType dtype : floats) {
      const Tensor a = random_tensor(random, dtype, DDim{3, 1, 4, 5}), b = random_tensor(random, dtype, DDim{2, 5, 6});
      const Tensor out = on.down(matmul(on.up(a), on.up(b), on.stream()));
      REQUIRE(out.dims() == DDim{3, 2, 4, 6});
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t j = 0; j < 2; ++j) {
          const auto expected = reference::matmul(reference::values(a.select(0, i).select(0, 0)), reference::values(b.select(0, j)));
          CHECK(error_of(out.select(0, i).select(0, j), expected) <= 20 * on.rounding(dtype));
        }
    }
  });
}

TEST_CASE("a batch times one matrix has the bits of each row alone") {
  CpuDevice device(2);
  Random random(4);
  const Tensor a = random_tensor(random, DType::f32, DDim{4, 5, 30}), b = random_tensor(random, DType::f32, DDim{30, 70});
  const Tensor out = matmul(a, b, device.stream(0));
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t j = 0; j < 5; ++j)
      CHECK(same_bits(matmul(a.select(0, i).select(0, j), b, device.stream(0)), out.select(0, i).select(0, j)));
}

TEST_CASE("vectors and empty products work") {
  CpuDevice device;
  const Tensor a = Tensor::from<double>({1, 2, 3}), b = Tensor::from<double>({4, 5, 6});
  CHECK(matmul(a, b, device.stream(0)).item() == 32);
  const Tensor none(DType::f64, DDim{2, 0});
  const Tensor zero = matmul(none, Tensor(DType::f64, DDim{0, 3}), device.stream(0));
  CHECK(zero.to_vector<double>() == std::vector<double>(6, 0.0));
  CHECK(matmul(Tensor(DType::f64, DDim{0, 3}), Tensor::from(std::vector<double>(6, 1.0), DDim{3, 2}), device.stream(0)).elements() == 0);
}

TEST_CASE("matrices of a batch without inner elements give zeros, however they lie, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor a = on.up(Tensor(DType::f32, DDim{2, 1, 0}));
    const Tensor time_major = on.up(Tensor(DType::f32, DDim{0, 2, 6}));
    for (const Tensor& right : {time_major.permute({1, 0, 2}), on.up(Tensor(DType::f32, DDim{2, 0, 6}))}) {
      const Tensor out = on.down(matmul(a, right, on.stream()));
      CHECK(out.dims() == DDim{2, 1, 6});
      CHECK(out.to_vector<float>() == std::vector<float>(12, 0.0f));
    }
  });
}

}  // namespace millrace::testing
