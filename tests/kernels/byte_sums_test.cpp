// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/byte_sums.h>

#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cast.h>

namespace millrace::testing {
namespace {

Tensor bytes(Random& random, DType dtype, const DDim& dims) {
  Tensor made(DType::f64, dims);
  const std::int64_t low = dtype == DType::i8 ? -128 : 0;
  for (std::int64_t i = 0; i < made.elements(); ++i) made.mutable_data<double>()[i] = static_cast<double>(random.between(low, low + 255));
  CpuDevice device;
  return cast(made, dtype, device.stream(0));
}

}  // namespace

TEST_CASE("sums of bytes less a zero are exact, over any last axes, for any strides, on every instruction set") {
  Random random(31);
  each_instruction_set([&](const std::string& name) {
    CpuDevice one(1), many(3);
    for (const DType dtype : {DType::u8, DType::i8})
      for (const std::int64_t count : {1, 9, 31, 32, 49, 64, 65, 200, 6400}) {
        INFO(name, ", ", count, " bytes");
        const std::int64_t zero = random.between(-128, 255);
        const Tensor x = bytes(random, dtype, {2, 7, count});
        std::vector<float> wanted;
        const std::vector<double> numbers = cast(x, DType::f64, one.stream(0)).to_vector<double>();
        for (std::size_t row = 0; row < 14; ++row) {
          double sum = 0;
          for (std::int64_t i = 0; i < count; ++i)
            sum += numbers[row * static_cast<std::size_t>(count) + static_cast<std::size_t>(i)] - static_cast<double>(zero);
          wanted.push_back(static_cast<float>(sum));
        }
        const Tensor found = sum_bytes(x, zero, 1, true, one.stream(0));
        CHECK(found.dims() == DDim{2, 7, 1});
        CHECK(found.to_vector<float>() == wanted);
        CHECK(sum_bytes(x, zero, 1, false, many.stream(0)).to_vector<float>() == wanted);
        CHECK(sum_bytes(x.reshape({14, 1, count}), zero, 2, false, one.stream(0)).dims() == DDim{14});
        const Tensor turned = clone(x.permute({2, 0, 1}), one.stream(0)).permute({1, 2, 0});
        CHECK(sum_bytes(turned, zero, 1, false, one.stream(0)).to_vector<float>() == wanted);
      }
    CHECK(sum_bytes(bytes(random, DType::u8, {3, 0}), 7, 1, false, one.stream(0)).to_vector<float>() == std::vector<float>(3));
    CHECK(sum_bytes(bytes(random, DType::u8, {0, 3}), 7, 1, false, one.stream(0)).elements() == 0);
  });
}

TEST_CASE("sums of bytes name what does not fit") {
  CpuDevice device;
  Random random(32);
  CHECK_THROWS_AS(sum_bytes(random_tensor(random, DType::f32, {2, 3}), 0, 1, true, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(sum_bytes(bytes(random, DType::u8, {2, 3}), 0, 3, true, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(sum_bytes(bytes(random, DType::u8, {2, 3}), 0, 0, true, device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
