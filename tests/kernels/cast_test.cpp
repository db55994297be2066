// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cast.h>

#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

constexpr DType all[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean};

}  // namespace

TEST_CASE("small whole numbers survive a cast between any two dtypes, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const reference::Values numbers{DDim{2, 2}, {0, 1, 1, 0}};
    for (const DType from : all)
      for (const DType to : all)
        CHECK(reference::values(on.down(cast(on.up(reference::tensor(numbers, from)), to, on.stream()))).at == numbers.at);
  });
}

TEST_CASE("floats become integers by truncation, clamped to the range, NaN to 0") {
  CpuDevice device;
  constexpr double inf = std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::from<double>({1.9, -1.9, 1e30, -1e30, inf, std::nan("")});
  using Limits = std::numeric_limits<std::int64_t>;
  CHECK(cast(x, DType::i64, device.stream(0)).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{1, -1, Limits::max(), Limits::min(), Limits::max(), 0});
  CHECK(cast(x, DType::u8, device.stream(0)).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 0, 255, 0, 255, 0});
  CHECK(cast(x, DType::boolean, device.stream(0)).to_vector<bool>() == std::vector<bool>(6, true));
}

TEST_CASE("integers keep their low bits, floats round to nearest even") {
  CpuDevice device;
  CHECK(cast(Tensor::from<std::int32_t>({257, -1}), DType::u8, device.stream(0)).to_vector<std::uint8_t>() ==
        std::vector<std::uint8_t>{1, 255});
  const std::vector<float16> half = cast(Tensor::from<float>({2049.0f, 2051.0f}), DType::f16, device.stream(0)).to_vector<float16>();
  CHECK((static_cast<float>(half[0]) == 2048 && static_cast<float>(half[1]) == 2052));
}

TEST_CASE("a strided view is cast, and one of that dtype is given back as it is") {
  CpuDevice device;
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, DDim{2, 3}).permute({1, 0});
  CHECK(cast(x, DType::i32, device.stream(0)).to_vector<std::int32_t>() == std::vector<std::int32_t>{1, 4, 2, 5, 3, 6});
  CHECK(cast(x, DType::f32, device.stream(0)).raw() == x.raw());
  Tensor wrong(DType::i32, DDim{2, 3});
  CHECK_THROWS_AS(cast(x, wrong, device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
