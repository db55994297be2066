// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/elementwise.h>

#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cpu/float_functions.h>

namespace millrace::testing {
namespace {

double apply(Binary kind, double x, double y) {
  switch (kind) {
    case Binary::add: return x + y;
    case Binary::sub: return x - y;
    case Binary::mul: return x * y;
    case Binary::div: return x / y;
    case Binary::pow: return std::pow(x, y);
    case Binary::minimum: return std::min(x, y);
    case Binary::maximum: return std::max(x, y);
    case Binary::mod: return x - std::floor(x / y) * y;
    case Binary::fmod: return std::fmod(x, y);
    case Binary::prelu: return x < 0 ? y * x : x;
    case Binary::sigmoid_gradient: return x * (y * (1 - y));
    case Binary::tanh_gradient: return x * (1 - y * y);
    case Binary::equal: return x == y;
    case Binary::not_equal: return x != y;
    case Binary::less: return x < y;
    case Binary::less_equal: return x <= y;
    case Binary::greater: return x > y;
    default: return x >= y;
  }
}

/// Extents that stretch to [2, 3, 4]: some axes 1, some missing.
DDim part_of(Random& random) {
  DDim dims;
  for (int axis = 0; axis < 3; ++axis)
    if (dims.rank() > 0 || random.coin()) dims = dims.inserted(dims.rank(), random.coin() ? 1 : axis + 2);
  return dims;
}

}  // namespace

TEST_CASE(
    "every function of two floats agrees with the reference, however its operands stretch, on every device and "
    "dtype") {
  each_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(6)) {
      INFO("seed ", seed);
      Random random(seed);
      for (int index = 0; index < static_cast<int>(Binary::logical_and); ++index) {
        const auto kind = static_cast<Binary>(index);
        INFO(name_of(kind));
        for (const DType dtype : floats) {
          Tensor a = random_tensor(random, dtype, part_of(random), 4);
          const Tensor b = random_tensor(random, dtype, part_of(random), 4);
          if (kind == Binary::pow) a = on.down(mul(on.up(a), on.up(a), on.stream()));
          const auto expected =
              reference::map([kind](double x, double y) { return apply(kind, x, y); }, reference::values(a), reference::values(b));
          // A remainder near its divisor may have been rounded up to it.
          const double allowed = kind == Binary::mod ? 1e-2 : 2.1 * rounding(dtype);
          const Tensor found = on.down(binary(kind, on.up(a), on.up(b), on.stream()));
          CHECK(found.dtype() == result_dtype(kind, dtype));
          CHECK(error_of(found, expected) <= allowed);
        }
      }
    }
  });
}

TEST_CASE("strided operands and a stretched scalar give the bits of contiguous ones") {
  CpuDevice device(2);
  Random random(3);
  const Tensor a = random_tensor(random, DType::f32, DDim{30, 50}), b = random_tensor(random, DType::f32, DDim{30, 50});
  const StreamRef stream = device.stream(0);
  const Tensor expected = div(a, b, stream);
  const auto turned = [&](const Tensor& x) { return clone(x.permute({1, 0}), stream).permute({1, 0}); };
  CHECK(same_bits(div(turned(a), b, stream), expected));
  CHECK(same_bits(div(turned(a), turned(b), stream), expected));
  const Tensor three = Tensor::scalar(3.0f);
  for (std::int64_t i = 0; i < 30; ++i) CHECK(same_bits(div(a.rows(i, i + 1), three, stream), div(a, three, stream).rows(i, i + 1)));
}

TEST_CASE("an output may be an operand that is not stretched") {
  CpuDevice device;
  Tensor a = Tensor::from<float>({1, 2, 3});
  add(a, Tensor::scalar(1.0f), a, device.stream(0));
  CHECK(a.to_vector<float>() == std::vector<float>{2, 3, 4});
}

TEST_CASE("pow with an exponent of 2 is the rounded square") {
  CpuDevice device;
  Random random(1);
  const Tensor x = random_tensor(random, DType::f32, DDim{200}, 7);
  CHECK(same_bits(pow(x, Tensor::scalar(2.0f), device.stream(0)), mul(x, x, device.stream(0))));
}

TEST_CASE("pow of f32 is within 0.6 ulp of the exact power, and has the special cases of the C library") {
  CpuDevice device;
  Random random(8);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> bases, exponents;
  const std::vector<float> special{0,         -0.0f,         1,        -1,   2, -2, 3, -3, 0.5f, -0.5f, 1e-45f, -1e-45f, infinity,
                                   -infinity, std::nanf(""), 16777215, 1e10f};
  for (const float x : special)
    for (const float y : special) {
      bases.push_back(x);
      exponents.push_back(y);
    }
  for (int i = 0; i < 20000; ++i) {
    const float x = std::ldexp(1 + static_cast<float>(random.between(0, 1 << 20)) * 0x1p-20f, static_cast<int>(random.between(-140, 120)));
    bases.push_back(x);
    exponents.push_back(static_cast<float>(random.between(-1000, 1000)) * 0.16f / std::log2(x));
    bases.push_back(static_cast<float>(random.between(-500, 500)) * 0.01f);
    exponents.push_back(static_cast<float>(random.between(-30, 30)));
  }
  const auto count = static_cast<std::int64_t>(bases.size());
  const Tensor x = Tensor::from(bases, DDim{count}), y = Tensor::from(exponents, DDim{count});
  each_instruction_set([&](const std::string& name) {
    INFO(name);
    const std::vector<float> found = pow(x, y, device.stream(0)).to_vector<float>();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const long double wanted =
          std::pow(static_cast<long double>(cpu::flushed(bases[i])), static_cast<long double>(cpu::flushed(exponents[i])));
      const float rounded = cpu::flushed(static_cast<float>(wanted));
      if (std::isnan(rounded) || std::isinf(rounded) || rounded == 0) {
        wrong += std::isnan(rounded) ? !std::isnan(found[i]) : found[i] != rounded || std::signbit(found[i]) != std::signbit(rounded);
        continue;
      }
      const float unit = std::nextafter(std::fabs(rounded), infinity) - std::fabs(rounded);
      // The C library's own function where an instruction set has no vectors.
      wrong += std::fabs(found[i] - wanted) > (name == "EMU128" || name == "SCALAR" ? 1.0L : 0.6L) * unit;
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("remainders of f32 are those of the C library, however far apart their operands are") {
  CpuDevice device;
  Random random(9);
  std::vector<float> over, under;
  for (const float x : {0.0f, -0.0f, 1.0f, -7.5f, 3e38f, 1e-45f, std::numeric_limits<float>::infinity(), std::nanf("")})
    for (const float y : {0.0f, 1.0f, -2.5f, 3e38f, -1e-45f, -std::numeric_limits<float>::infinity(), std::nanf("")}) {
      over.push_back(x);
      under.push_back(y);
    }
  for (int i = 0; i < 20000; ++i) {
    over.push_back(std::ldexp(static_cast<float>(random.between(-(1 << 24), 1 << 24)), static_cast<int>(random.between(-30, 30))));
    under.push_back(std::ldexp(static_cast<float>(random.between(1, 1 << 24)), static_cast<int>(random.between(-30, 0))));
  }
  const auto count = static_cast<std::int64_t>(over.size());
  const Tensor x = Tensor::from(over, DDim{count}), y = Tensor::from(under, DDim{count});
  each_instruction_set([&](const std::string& name) {
    INFO(name);
    const std::vector<float> rest = fmod(x, y, device.stream(0)).to_vector<float>();
    const std::vector<float> folded = mod(x, y, device.stream(0)).to_vector<float>();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < over.size(); ++i) {
      const float wanted = cpu::flushed(std::fmod(cpu::flushed(over[i]), cpu::flushed(under[i])));
      const bool turns = wanted != 0 && (wanted < 0) != (under[i] < 0);
      if (std::isnan(wanted))
        wrong += !std::isnan(rest[i]) || !std::isnan(folded[i]);
      else
        wrong += rest[i] != wanted || std::signbit(rest[i]) != std::signbit(wanted) || folded[i] != (turns ? wanted + under[i] : wanted);
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("arithmetic of two f32 has the bits of each element alone, at every place") {
  CpuDevice device(2);
  Random random(10);
  const Tensor a = random_tensor(random, DType::f32, DDim{53}, 6), b = random_tensor(random, DType::f32, DDim{53}, 6);
  for (int index = 0; index < static_cast<int>(Binary::equal); ++index) {
    const auto kind = static_cast<Binary>(index);
    INFO(name_of(kind));
    const Tensor whole = binary(kind, a, b, device.stream(0));
    for (std::int64_t at = 0; at < 53; ++at)
      CHECK(same_bits(binary(kind, a.rows(at, at + 1), b.rows(at, at + 1), device.stream(0)), whole.rows(at, at + 1)));
  }
}

TEST_CASE("the gradients of sigmoid and tanh have the bits of the products and differences that they stand for") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  Random random(11);
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor g = random_tensor(random, dtype, DDim{5, 53}, 6), y = random_tensor(random, dtype, DDim{53}, 1);
    const Tensor one = dtype == DType::f32 ? Tensor::scalar(1.0f) : Tensor::scalar(1.0);
    CHECK(same_bits(sigmoid_gradient(g, y, stream), mul(g, mul(y, sub(one, y, stream), stream), stream)));
    CHECK(same_bits(tanh_gradient(g, y, stream), mul(g, sub(one, mul(y, y, stream), stream), stream)));
  }
}

TEST_CASE("integers wrap, truncate, and follow the sign that mod and fmod say") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  const Tensor a = Tensor::from<std::int64_t>({7, -7, 7, -7, least}), b = Tensor::from<std::int64_t>({2, 2, -2, -2, -1});
  CHECK(div(a, b, stream).to_vector<std::int64_t>() == std::vector<std::int64_t>{3, -3, -3, 3, least});
  CHECK(mod(a, b, stream).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 1, -1, -1, 0});
  CHECK(fmod(a, b, stream).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, -1, 1, -1, 0});
  const Tensor bytes = Tensor::from<std::uint8_t>({200, 16}), more = Tensor::from<std::uint8_t>({100, 2});
  CHECK(add(bytes, more, stream).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{44, 18});
  CHECK(pow(bytes, more, stream).to_vector<std::uint8_t>()[1] == 0);
  const Tensor base = Tensor::from<std::int32_t>({2, -1, 3}), power = Tensor::from<std::int32_t>({-1, -3, 4});
  CHECK(pow(base, power, stream).to_vector<std::int32_t>() == std::vector<std::int32_t>{0, -1, 81});
}

TEST_CASE("an integer division by zero is an error that names the function") {
  CpuDevice device;
  const Tensor a = Tensor::from<std::int32_t>({1, 2}), zero = Tensor::from<std::int32_t>({1, 0});
  for (const Binary kind : {Binary::div, Binary::mod, Binary::fmod})
    CHECK_THROWS_WITH_AS(binary(kind, a, zero, device.stream(0)), doctest::Contains("an integer is divided by zero"), ArgumentError);
  CHECK_THROWS_AS(pow(zero, Tensor::scalar(std::int32_t{-1}), device.stream(0)), ArgumentError);
}

TEST_CASE("NaN wins in min and max, and compares as IEEE 754 says") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  const float nan = std::nanf("");
  const Tensor a = Tensor::from<float>({nan, 1, nan}), b = Tensor::from<float>({1, nan, nan});
  for (const Tensor& y : {minimum(a, b, stream), maximum(a, b, stream)})
    for (const float v : y.to_vector<float>()) CHECK(std::isnan(v));
  CHECK(equal(a, b, stream).to_vector<bool>() == std::vector<bool>(3, false));
  CHECK(not_equal(a, b, stream).to_vector<bool>() == std::vector<bool>(3, true));
  CHECK(less_equal(a, a, stream).to_vector<bool>() == std::vector<bool>{false, true, false});
}

TEST_CASE("logic takes bool") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  const Tensor a = Tensor::from<bool>({false, false, true, true}), b = Tensor::from<bool>({false, true, false, true});
  CHECK(logical_and(a, b, stream).to_vector<bool>() == std::vector<bool>{false, false, false, true});
  CHECK(logical_or(a, b, stream).to_vector<bool>() == std::vector<bool>{false, true, true, true});
  CHECK(logical_xor(a, b, stream).to_vector<bool>() == std::vector<bool>{false, true, true, false});
  CHECK(equal(a, b, stream).to_vector<bool>() == std::vector<bool>{true, false, false, true});
  CHECK_THROWS_WITH_AS(add(a, b, stream), "add: expected a number, found bool", DTypeError);
  CHECK_THROWS_AS(logical_and(Tensor::scalar(1.0f), Tensor::scalar(1.0f), stream), DTypeError);
}

TEST_CASE("shapes that do not broadcast and dtypes that differ are errors that name both") {
  CpuDevice device;
  const Tensor a = Tensor::from(std::vector<float>(6, 1), DDim{2, 3});
  CHECK_THROWS_WITH_AS(add(a, Tensor::from<float>({1, 2}), device.stream(0)), doctest::Contains("[2, 3] and [2]"), ShapeError);
  CHECK_THROWS_WITH_AS(add(a, Tensor::scalar(1.0), device.stream(0)), "add: expected one dtype, found f32[2, 3] on cpu and f64[] on cpu",
                       DTypeError);
}

TEST_CASE("an operand that was moved from is an error that names the function") {
  CpuDevice device;
  Tensor moved = Tensor::from<float>({1, 2});
  const Tensor taken = std::move(moved);
  // NOLINTBEGIN(bugprone-use-after-move)
  for (const auto& [a, b] : {std::pair(moved, taken), std::pair(taken, moved)})
    CHECK_THROWS_WITH_AS(add(a, b, device.stream(0)), "add: expected tensors with elements, found f32[2], moved from", UninitializedError);
  // NOLINTEND(bugprone-use-after-move)
}

TEST_CASE("no elements give no elements") {
  CpuDevice device;
  CHECK(add(Tensor(DType::f32, DDim{0, 3}), Tensor::from<float>({1, 2, 3}), device.stream(0)).dims() == DDim{0, 3});
  CHECK(add(Tensor(DType::f32, DDim{0, 3}), Tensor::from(std::vector<float>(3, 1), DDim{1, 3}), device.stream(0)).elements() == 0);
}

}  // namespace millrace::testing
