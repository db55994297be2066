// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/arithmetic.h>

#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/unary.h>

namespace millrace::testing {
namespace {

using Steps = std::vector<ArithmeticStep>;

Tensor one_step(ArithmeticStep step, const Tensor& x, const Tensor& a, StreamRef stream) {
  switch (step) {
    case ArithmeticStep::add: return binary(Binary::add, x, a, stream);
    case ArithmeticStep::sub: return binary(Binary::sub, x, a, stream);
    case ArithmeticStep::from: return binary(Binary::sub, a, x, stream);
    case ArithmeticStep::mul: return binary(Binary::mul, x, a, stream);
    case ArithmeticStep::div: return binary(Binary::div, x, a, stream);
    case ArithmeticStep::into: return binary(Binary::div, a, x, stream);
    case ArithmeticStep::minimum: return binary(Binary::minimum, x, a, stream);
    case ArithmeticStep::before_minimum: return binary(Binary::minimum, a, x, stream);
    case ArithmeticStep::maximum: return binary(Binary::maximum, x, a, stream);
    case ArithmeticStep::before_maximum: return binary(Binary::maximum, a, x, stream);
    case ArithmeticStep::square: return binary(Binary::mul, x, x, stream);
    case ArithmeticStep::relu: return unary(Unary::relu, {}, x, stream);
    case ArithmeticStep::sqrt: return unary(Unary::sqrt, {}, x, stream);
    case ArithmeticStep::neg: return unary(Unary::neg, {}, x, stream);
    case ArithmeticStep::abs: return unary(Unary::abs, {}, x, stream);
    case ArithmeticStep::reciprocal: return unary(Unary::reciprocal, {}, x, stream);
    case ArithmeticStep::round: return unary(Unary::round, {}, x, stream);
    case ArithmeticStep::exp: return unary(Unary::exp, {}, x, stream);
    case ArithmeticStep::tanh: return unary(Unary::tanh, {}, x, stream);
    case ArithmeticStep::sigmoid: return unary(Unary::sigmoid, {}, x, stream);
    case ArithmeticStep::erf: return unary(Unary::erf, {}, x, stream);
    case ArithmeticStep::prelu: return binary(Binary::prelu, x, a, stream);
    case ArithmeticStep::elu: return unary(Unary::elu, {static_cast<double>(a.elements() == 0 ? 0 : a.item())}, x, stream);
    case ArithmeticStep::hard_swish: return unary(Unary::hard_swish, {}, x, stream);
    case ArithmeticStep::gelu: return unary(Unary::gelu, {}, x, stream);
    case ArithmeticStep::gelu_tanh: return unary(Unary::gelu_tanh, {}, x, stream);
    case ArithmeticStep::mish: return unary(Unary::mish, {}, x, stream);
    case ArithmeticStep::softplus: return unary(Unary::softplus, {}, x, stream);
  }
  return x;
}

Tensor step_by_step(const Steps& steps, Tensor x, const std::vector<Tensor>& operands, StreamRef stream) {
  std::size_t next = 0;
  for (const ArithmeticStep step : steps) x = one_step(step, x, has_operand(step) ? operands[next++] : x, stream);
  return x;
}

Tensor all_steps(const Steps& steps, const Tensor& x, const std::vector<Tensor>& operands, StreamRef stream) {
  std::vector<const Tensor*> read;
  for (const Tensor& operand : operands) read.push_back(&operand);
  return arithmetic(steps, x, read, stream);
}

}  // namespace

TEST_CASE("steps of arithmetic have the bits of one op after another, for any extents and strides, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(1);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const std::int64_t width : {0, 1, 3, 16, 37, 300})
        for (const std::int64_t rows : {1, 5, 500}) {
          const Tensor x = random_tensor(random, dtype, DDim{2, rows, width});
          const Tensor same = random_tensor(random, dtype, DDim{2, rows, width}), row = random_tensor(random, dtype, DDim{width});
          const Tensor column = random_tensor(random, dtype, DDim{rows, 1}), number = random_tensor(random, dtype, DDim{});
          const Tensor turned = random_tensor(random, dtype, DDim{width, rows, 2}).permute({2, 1, 0});
          const std::vector<std::pair<Steps, std::vector<Tensor>>> formulas{
              {{ArithmeticStep::sub, ArithmeticStep::mul, ArithmeticStep::add}, {column, column, row}},
              {{ArithmeticStep::from, ArithmeticStep::into, ArithmeticStep::square, ArithmeticStep::relu}, {same, number}},
              {{ArithmeticStep::abs, ArithmeticStep::sqrt, ArithmeticStep::reciprocal, ArithmeticStep::neg}, {}},
              {{ArithmeticStep::maximum, ArithmeticStep::minimum}, {number, turned}},
              {{ArithmeticStep::div, ArithmeticStep::erf, ArithmeticStep::mul, ArithmeticStep::sigmoid}, {number, same}},
              {{ArithmeticStep::tanh, ArithmeticStep::add, ArithmeticStep::exp}, {column}},
              {{ArithmeticStep::before_maximum, ArithmeticStep::before_minimum, ArithmeticStep::div}, {row, same, column}},
              {{ArithmeticStep::add, ArithmeticStep::add, ArithmeticStep::sub, ArithmeticStep::mul, ArithmeticStep::add,
                ArithmeticStep::mul},
               {row, column, number, same, turned, row}}};
          for (const auto& [steps, operands] : formulas) {
            const Tensor wanted = step_by_step(steps, x, operands, one.stream(0));
            CHECK(same_bits(all_steps(steps, x, operands, one.stream(0)), wanted));
            CHECK(same_bits(all_steps(steps, x, operands, two.stream(0)), wanted));
          }
          const Steps wider{ArithmeticStep::mul, ArithmeticStep::add};
          CHECK(same_bits(all_steps(wider, row, {column, same}, one.stream(0)), step_by_step(wider, row, {column, same}, one.stream(0))));
        }
  });
}

TEST_CASE("steps between casts of whole numbers have the bits of one op after another, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(6);
    for (const std::int64_t width : {0, 1, 3, 16, 37, 300})
      for (const DType from : {DType::u8, DType::i8, DType::i32, DType::f32}) {
        const auto numbers = [&](const DDim& dims) { return cast(random_tensor(random, DType::f32, dims, 200), from, one.stream(0)); };
        for (const Tensor& x : {numbers(DDim{3, width}), numbers(DDim{width, 3}).permute({1, 0}), numbers(DDim{3, 1}), numbers(DDim{})}) {
          const Tensor row = random_tensor(random, DType::f32, DDim{3, width}, 2), number = random_tensor(random, DType::f32, DDim{});
          const Steps steps{ArithmeticStep::sub, ArithmeticStep::mul, ArithmeticStep::round, ArithmeticStep::add};
          const std::vector<Tensor> operands{number, row, row};
          const Tensor wanted = step_by_step(steps, cast(x, DType::f32, one.stream(0)), operands, one.stream(0));
          std::vector<const Tensor*> read;
          for (const Tensor& operand : operands) read.push_back(&operand);
          CHECK(same_bits(arithmetic(steps, x, read, two.stream(0)), wanted));
          for (const DType to : {DType::u8, DType::i8})
            CHECK(same_bits(arithmetic(steps, x, read, one.stream(0), to), cast(wanted, to, one.stream(0))));
        }
      }
    const float infinity = std::numeric_limits<float>::infinity();
    const Tensor odd = Tensor::from<float>({std::nanf("1"), infinity, -infinity, -0.5f, 300, -300, 127.9f, 0.5f, 1.5f, -0.0f});
    for (const DType to : {DType::u8, DType::i8}) {
      CHECK(same_bits(arithmetic({}, odd, {}, one.stream(0), to), cast(odd, to, one.stream(0))));
      CHECK(same_bits(arithmetic({ArithmeticStep::round}, odd, {}, one.stream(0)), unary(Unary::round, {}, odd, one.stream(0))));
    }
  });
}

TEST_CASE(
    "bytes of rounded quotients have the bits of one op after another where a product with the inverse would not decide, on every "
    "instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice device;
    const StreamRef stream = device.stream(0);
    const float infinity = std::numeric_limits<float>::infinity(), least = std::numeric_limits<float>::denorm_min();
    for (const std::uint64_t seed : seeds(40)) {
      INFO("seed ", seed);
      Random random(seed);
      const float odd[] = {infinity, 0.0f, -0.0f, least, 1e-39f, 1.5e38f, 3e38f, std::nanf("1")};
      const float scale = seed < 8 ? odd[seed] : static_cast<float>(random.between(1, 1 << 24)) * (random.coin() ? 1e-9f : -1e-3f);
      const std::int64_t rows = random.between(1, 3), width = random.between(1, 200);
      std::vector<float> numbers;
      for (std::int64_t i = 0; i < rows * width; ++i) {
        // A half of a step, a neighbour of it, or any number.
        const float half = (static_cast<float>(random.between(-700, 700)) + 0.5f) * scale;
        const float beside[] = {half,
                                std::nextafter(half, infinity),
                                std::nextafter(half, -infinity),
                                static_cast<float>(random.between(-100000, 100000)) * scale * 0.01f,
                                odd[random.between(0, 7)],
                                -odd[random.between(0, 7)]};
        numbers.push_back(beside[random.between(0, 5)]);
      }
      const Tensor x = Tensor::from(numbers, DDim{rows, width}), one = Tensor::scalar(scale);
      const Tensor each = Tensor::from(std::vector<float>(static_cast<std::size_t>(rows), scale), DDim{rows, 1});
      for (const DType to : {DType::u8, DType::i8})
        for (const float zero : {0.0f, 128.0f, -128.0f, 255.0f, 0.5f, 1e6f})
          for (const bool bounded : {false, true}) {
            Steps steps{ArithmeticStep::div, ArithmeticStep::round, ArithmeticStep::add};
            std::vector<Tensor> operands{random.coin() ? one : each, Tensor::scalar(zero)};
            if (bounded) {
              steps.insert(steps.end(), {ArithmeticStep::maximum, ArithmeticStep::minimum});
              // The range of a byte, a wider one, and one that is narrower at an end.
              const std::int64_t kind = random.between(0, 2);
              const float first = to == DType::u8 ? 0 : -128;
              operands.push_back(Tensor::scalar(kind == 1 ? first - 5 : first));
              operands.push_back(Tensor::scalar(first + (kind == 2 ? 200.0f : kind == 1 ? 300.0f : 255.0f)));
            }
            std::vector<const Tensor*> read;
            for (const Tensor& operand : operands) read.push_back(&operand);
            CHECK(same_bits(arithmetic(steps, x, read, stream, to), cast(step_by_step(steps, x, operands, stream), to, stream)));
          }
    }
  });
}

TEST_CASE(
    "Bytes of scaled sums have the bits of one op after another with factors of each row, of each element and of all, on every instruction "
    "set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice device;
    const StreamRef stream = device.stream(0);
    const float infinity = std::numeric_limits<float>::infinity();
    for (const std::uint64_t seed : seeds(60)) {
      INFO("seed ", seed);
      Random random(seed);
      const std::int64_t rows = random.between(1, 4), width = random.between(1, 150);
      std::vector<std::int32_t> sums;
      for (std::int64_t i = 0; i < rows * width; ++i)
        sums.push_back(static_cast<std::int32_t>(random.coin() ? random.between(-500, 500) : random.between(-2147483647, 2147483647)));
      const Tensor x = Tensor::from(sums, DDim{rows, width});
      // Halves of a step are many where the factor and the divisor are powers of two.
      const bool halves = random.coin();
      const auto numbers = [&](const DDim& dims) {
        Tensor made = random_tensor(random, DType::f32, dims, 0.3);
        float* const to = made.mutable_data<float>();
        for (std::int64_t i = 0; i < made.elements(); ++i) {
          if (halves) to[i] = 0.5f;
          if (seed % 7 == 0 && random.between(0, 9) == 0) to[i] = random.coin() ? std::nanf("1") : infinity;
        }
        return made;
      };
      const auto spread = [&] {
        const DDim dims[] = {DDim{}, DDim{rows, 1}, DDim{width}, DDim{1, 1}};
        return numbers(dims[random.between(0, 3)]);
      };
      const float odd[] = {-0.25f, 0.0f, 1e-39f, infinity};
      Steps steps;
      std::vector<Tensor> operands;
      const auto take = [&](ArithmeticStep step, const Tensor& operand) {
        steps.push_back(step);
        operands.push_back(operand);
      };
      if (random.between(0, 5) > 0) take(ArithmeticStep::mul, spread());
      if (random.coin()) take(ArithmeticStep::add, spread());
      for (std::int64_t bounds = random.between(0, 2); bounds > 0; --bounds) {
        const std::int64_t kind = random.between(0, 3);
        if (kind == 0) steps.push_back(ArithmeticStep::relu);
        if (kind == 1) take(ArithmeticStep::minimum, Tensor::scalar(6.0f));
        if (kind == 2) take(ArithmeticStep::maximum, Tensor::scalar(-3.3f));
        if (kind == 3) take(ArithmeticStep::minimum, numbers(DDim{}));
      }
      take(ArithmeticStep::div, Tensor::scalar(seed % 10 == 3 ? odd[seed / 10 % 4] : halves ? 0.25f : 0.0235f));
      steps.push_back(ArithmeticStep::round);
      take(ArithmeticStep::add, Tensor::scalar(random.coin() ? 0.0f : 77.0f));
      std::vector<const Tensor*> read;
      for (const Tensor& operand : operands) read.push_back(&operand);
      const Tensor wanted = step_by_step(steps, cast(x, DType::f32, stream), operands, stream);
      for (const DType to : {DType::u8, DType::i8}) CHECK(same_bits(arithmetic(steps, x, read, stream, to), cast(wanted, to, stream)));
    }
  });
}

TEST_CASE("bounds and relu of NaN, of zeros and of infinities have the bits of their ops") {
  CpuDevice device;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> left, right;
  for (const float a : {0.0f, -0.0f, 1.0f, std::nanf("1"), infinity, -infinity})
    for (const float b : {0.0f, -0.0f, -1.0f, std::nanf("2"), infinity, -infinity}) {
      left.push_back(a);
      right.push_back(b);
    }
  const Tensor x = Tensor::from(left, DDim{36}), a = Tensor::from(right, DDim{36});
  for (const ArithmeticStep step : {ArithmeticStep::minimum, ArithmeticStep::before_minimum, ArithmeticStep::maximum,
                                    ArithmeticStep::before_maximum, ArithmeticStep::relu, ArithmeticStep::abs, ArithmeticStep::neg}) {
    const std::vector<Tensor> operands(has_operand(step) ? 1 : 0, a);
    CHECK(same_bits(all_steps(Steps{step}, x, operands, device.stream(0)), one_step(step, x, a, device.stream(0))));
  }
}

TEST_CASE("functions and slopes have the bits of their ops, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice device;
    for (const std::uint64_t seed : seeds(6)) {
      INFO("seed ", seed);
      Random random(seed);
      for (const DType dtype : {DType::f32, DType::f64}) {
        const std::int64_t width = random.between(1, 300);
        const Tensor x = random_tensor(random, dtype, DDim{3, width}, 4), slopes = random_tensor(random, dtype, DDim{3, 1});
        const Tensor slope = random_tensor(random, dtype, DDim{});
        CHECK(same_bits(all_steps({ArithmeticStep::prelu}, x, {slopes}, device.stream(0)),
                        binary(Binary::prelu, x, slopes, device.stream(0))));
        CHECK(same_bits(all_steps({ArithmeticStep::prelu}, x, {slope}, device.stream(0)),
                        unary(Unary::leaky_relu, {static_cast<double>(slope.item())}, x, device.stream(0))));
        CHECK(same_bits(all_steps({ArithmeticStep::elu}, x, {slope}, device.stream(0)),
                        one_step(ArithmeticStep::elu, x, slope, device.stream(0))));
        for (const ArithmeticStep step :
             {ArithmeticStep::hard_swish, ArithmeticStep::gelu, ArithmeticStep::gelu_tanh, ArithmeticStep::mish, ArithmeticStep::softplus})
          CHECK(same_bits(all_steps({step}, x, {}, device.stream(0)), one_step(step, x, x, device.stream(0))));
      }
    }
  });
}

TEST_CASE("operands of another number, dtype or extents are errors") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({1, 2});
  const Steps add{ArithmeticStep::add};
  CHECK_THROWS_WITH_AS(all_steps(add, x, {}, device.stream(0)), doctest::Contains("expected 1 operands"), ArgumentError);
  CHECK_THROWS_AS(all_steps(add, x, std::vector<Tensor>{Tensor::from<double>({1, 2})}, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(all_steps(add, Tensor::from<std::int64_t>({1}), std::vector<Tensor>{x}, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(all_steps(add, x, std::vector<Tensor>{Tensor::from<float>({1, 2, 3})}, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(arithmetic({}, x, {}, device.stream(0), DType::i32), DTypeError);
  CHECK_THROWS_AS(arithmetic({}, Tensor::from<double>({1}), {}, device.stream(0), DType::u8), DTypeError);
}

}  // namespace millrace::testing
