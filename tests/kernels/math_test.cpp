// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/math.h>

#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("every function of one float agrees with the reference on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(5);
    for (int index = 0; index < static_cast<int>(Unary::logical_not); ++index) {
      const auto kind = static_cast<Unary>(index);
      INFO(name_of(kind));
      for (const DType dtype : floats) {
        const Tensor x = random_tensor(random, dtype, DDim{61}, 3);
        const auto expected = reference::map(reference::function(kind, {}), reference::values(x));
        CHECK(error_of(on.down(unary(kind, {}, on.up(x), on.stream())), expected) <= 2.1 * rounding(dtype));
      }
    }
  });
}

TEST_CASE("rounding is half to even, and sign keeps zero and NaN") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({0.5f, 1.5f, 2.5f, -0.5f, -1.5f});
  CHECK(round(x, device.stream(0)).to_vector<float>() == std::vector<float>{0, 2, 2, 0, -2});
  const std::vector<float> signs = sign(Tensor::from<float>({-3, 0, 2, std::nanf("")}), device.stream(0)).to_vector<float>();
  CHECK((signs[0] == -1 && signs[1] == 0 && signs[2] == 1 && std::isnan(signs[3])));
}

TEST_CASE("integers wrap where a float would not fit, and clip bounds their range") {
  CpuDevice device;
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();
  const Tensor x = Tensor::from<std::int32_t>({least, -7, 0, 5});
  CHECK(neg(x, device.stream(0)).to_vector<std::int32_t>() == std::vector<std::int32_t>{least, 7, 0, -5});
  CHECK(abs(x, device.stream(0)).to_vector<std::int32_t>() == std::vector<std::int32_t>{least, 7, 0, 5});
  CHECK(sign(x, device.stream(0)).to_vector<std::int32_t>() == std::vector<std::int32_t>{-1, -1, 0, 1});
  CHECK(unary(Unary::clip, {-5, 1e30}, x, device.stream(0)).to_vector<std::int32_t>() == std::vector<std::int32_t>{-5, -5, 0, 5});
}

TEST_CASE("is_nan, is_inf and logical_not give bool") {
  CpuDevice device;
  constexpr double inf = std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::from<double>({0, inf, -inf, std::nan("")});
  CHECK(is_nan(x, device.stream(0)).to_vector<bool>() == std::vector<bool>{false, false, false, true});
  CHECK(is_inf(x, device.stream(0)).to_vector<bool>() == std::vector<bool>{false, true, true, false});
  CHECK(logical_not(is_nan(x, device.stream(0)), device.stream(0)).to_vector<bool>() == std::vector<bool>{true, true, true, false});
}

TEST_CASE("a dtype that a function does not take is an error that names both") {
  CpuDevice device;
  CHECK_THROWS_WITH_AS(exp(Tensor::from<std::int32_t>({1}), device.stream(0)), "exp: expected f64, f32, f16 or bf16, found i32",
                       DTypeError);
  CHECK_THROWS_WITH_AS(logical_not(Tensor::from<float>({1}), device.stream(0)), "logical_not: expected bool, found f32", DTypeError);
  CHECK_THROWS_AS(neg(Tensor::scalar(true), device.stream(0)), DTypeError);
  const Tensor x = Tensor::from<float>({1, 2});
  Tensor short_out(DType::f32, DDim{1}), wrong_out(DType::f64, DDim{2});
  CHECK_THROWS_AS(exp(x, short_out, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(exp(x, wrong_out, device.stream(0)), DTypeError);
}

TEST_CASE("a tensor of another place is an error that names both places") {
  DeviceUnderTest sim = sim_backend();
  CHECK_THROWS_WITH_AS(exp(Tensor::from<float>({1}), sim.stream()),
                       "exp: expected tensors on sim:0 as the stream, found f32[1] on cpu: copy it there first", PlaceError);
}

TEST_CASE("no elements give no elements") {
  CpuDevice device;
  CHECK(exp(Tensor(DType::f32, DDim{0, 3}), device.stream(0)).dims() == DDim{0, 3});
}

}  // namespace millrace::testing
