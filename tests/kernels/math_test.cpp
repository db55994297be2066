// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/math.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/cpu/float_functions.h>

namespace millrace::testing {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The greatest distance of an f32 function from `exact` over `points`, in units of the last place. A NaN has to be one on both sides.
double worst(Unary kind, const std::vector<float>& points, long double (*exact)(long double)) {
  CpuDevice device;
  const Tensor y = unary(kind, {}, Tensor::from(points, DDim{static_cast<std::int64_t>(points.size())}), device.stream(0));
  double most = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const float found = y.data<float>()[i];
    long double wanted = exact(cpu::flushed(points[i]));
    if (std::fabs(wanted) < std::numeric_limits<float>::min()) wanted = cpu::flushed(static_cast<float>(wanted));
    if (std::isnan(found) || std::isnan(wanted)) {
      if (std::isnan(found) != std::isnan(wanted)) most = infinity;
      continue;
    }
    if (static_cast<long double>(found) == wanted) continue;
    const float rounded = std::fabs(static_cast<float>(wanted));
    const long double unit = static_cast<long double>(std::nextafter(rounded, infinity)) - rounded;
    most = std::max(most, static_cast<double>(std::fabs(found - wanted) / unit));
  }
  return most;
}

/// Every 49999th f32, those around 1 and the tangent of π/8, and those nearest to multiples of π/2.
std::vector<float> all_magnitudes() {
  std::vector<float> points{0, -0.0f, infinity, -infinity, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max()};
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 49999) points.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (std::uint32_t i = 0; i < 20000; ++i) points.push_back(std::bit_cast<float>(0x3f800000u - 1000000 + 99 * i));
  for (std::uint32_t i = 0; i < 60000; ++i) points.push_back(std::bit_cast<float>(0x3ed00000u + 53 * i));  // 0.406 to 0.51
  for (int i = -70000; i <= 70000; ++i) points.push_back(static_cast<float>(i * 1.57079632679489661923L));
  return points;
}

}  // namespace

TEST_CASE("log, sin, cos and atan of f32 stay within their stated error, with every instruction set") {
  const std::vector<float> points = all_magnitudes();
  each_instruction_set([&](const std::string&) {
    CHECK(worst(Unary::log, points, [](long double x) { return std::log(x); }) <= 1);
    CHECK(worst(Unary::sin, points, [](long double x) { return std::sin(x); }) <= 1);
    CHECK(worst(Unary::cos, points, [](long double x) { return std::cos(x); }) <= 1);
    CHECK(worst(Unary::atan, points, [](long double x) { return std::atan(x); }) <= 1.9);
  });
}

TEST_CASE("log, sin, cos and atan of f32 take their limits, keep NaN and the sign of zero, and take subnormals as zeros") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({infinity, -infinity, std::nanf(""), 0.0f, -0.0f, -1.0f, 1.0f, -1e-45f, 1e-39f});
  each_instruction_set([&](const std::string&) {
    const std::vector<float> l = log(x, device.stream(0)).to_vector<float>();
    CHECK((l[0] == infinity && std::isnan(l[1]) && std::isnan(l[2]) && l[3] == -infinity && l[4] == -infinity && std::isnan(l[5])));
    CHECK((l[6] == 0 && !std::signbit(l[6]) && l[7] == -infinity && l[8] == -infinity));
    const std::vector<float> s = sin(x, device.stream(0)).to_vector<float>();
    CHECK(
        (std::isnan(s[0]) && std::isnan(s[1]) && std::isnan(s[2]) && s[3] == 0 && !std::signbit(s[3]) && s[4] == 0 && std::signbit(s[4])));
    CHECK((s[7] == 0 && std::signbit(s[7]) && s[8] == 0));
    const std::vector<float> c = cos(x, device.stream(0)).to_vector<float>();
    CHECK((std::isnan(c[0]) && std::isnan(c[1]) && std::isnan(c[2]) && c[3] == 1 && c[4] == 1));
    const std::vector<float> a = atan(x, device.stream(0)).to_vector<float>();
    CHECK((a[0] == 1.57079637f && a[1] == -1.57079637f && std::isnan(a[2]) && a[3] == 0 && !std::signbit(a[3]) && a[4] == 0));
    CHECK((std::signbit(a[4]) && a[5] == -0.785398185f && a[6] == 0.785398185f && a[7] == 0 && std::signbit(a[7])));
  });
}

TEST_CASE("floor, ceil and round keep the sign of zero, and of what becomes zero, with every instruction set") {
  CpuDevice device;
  const std::vector<double> numbers{-0.0, 0.0, -0.25, 0.25, -0.75, 0.75, -1e-300, 1e-300, -2.5, 2.5};
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = cast(Tensor::from(numbers, DDim{static_cast<std::int64_t>(numbers.size())}), dtype, device.stream(0));
    const auto made = [&](Unary kind) {
      return cast(unary(kind, {}, x, device.stream(0)), DType::f64, device.stream(0)).to_vector<double>();
    };
    each_instruction_set([&](const std::string& name) {
      INFO("instruction set ", name);
      const std::vector<double> low = made(Unary::floor), high = made(Unary::ceil), near = made(Unary::round);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        INFO("number ", numbers[i]);
        CHECK(std::signbit(low[i]) == std::signbit(numbers[i]));
        CHECK(std::signbit(high[i]) == std::signbit(numbers[i]));
        CHECK(std::signbit(near[i]) == std::signbit(numbers[i]));
      }
    });
  }
}

TEST_CASE("atan of f32 has the same bits with every instruction set") {
  CpuDevice device;
  const std::vector<float> points = all_magnitudes();
  const Tensor x = Tensor::from(points, DDim{static_cast<std::int64_t>(points.size())});
  std::vector<float> first;
  each_instruction_set([&](const std::string& name) {
    INFO(name);
    std::vector<float> found = atan(x, device.stream(0)).to_vector<float>();
    if (first.empty()) first = found;
    CHECK(std::memcmp(found.data(), first.data(), found.size() * sizeof(float)) == 0);
  });
}

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
