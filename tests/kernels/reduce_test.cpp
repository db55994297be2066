// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/reduce.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cast.h>

namespace millrace::testing {
namespace {

double fold(Reduction kind, const std::vector<double>& x) {
  double sum = 0, magnitude = 0, squares = 0, product = 1, power = 0;
  for (const double v : x) {
    sum += v;
    magnitude += std::abs(v);
    squares += v * v;
    product *= v;
    power += std::exp(v);
  }
  switch (kind) {
    case Reduction::sum: return sum;
    case Reduction::mean: return sum / static_cast<double>(x.size());
    case Reduction::max: return *std::max_element(x.begin(), x.end());
    case Reduction::min: return *std::min_element(x.begin(), x.end());
    case Reduction::prod: return product;
    case Reduction::l1: return magnitude;
    case Reduction::l2: return std::sqrt(squares);
    case Reduction::sum_square: return squares;
    case Reduction::log_sum: return std::log(sum);
    default: return std::log(power);
  }
}

}  // namespace

TEST_CASE("every reduction over any axes agrees with the reference on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(5);
    for (int index = 0; index <= static_cast<int>(Reduction::log_sum_exp); ++index) {
      const auto kind = static_cast<Reduction>(index);
      INFO(name_of(kind));
      for (const DType dtype : floats) {
        Tensor x = random_tensor(random, dtype, DDim{3, 4, 5});
        if (kind == Reduction::log_sum)
          x = reference::tensor(reference::map([](double v) { return v * v + 0.5; }, reference::values(x)), dtype);
        const auto exact = reference::values(x);
        const auto check = [&](const std::vector<int>& axes, const reference::Values& rows, const DDim& dims) {
          auto expected = reference::fold_last([kind](const std::vector<double>& v) { return fold(kind, v); }, rows);
          expected.dims = dims;
          CHECK(error_of(on.down(reduce(kind, on.up(x), axes, false, on.stream())), expected) <= 40 * rounding(dtype));
        };
        check({1}, reference::permute(exact, {0, 2, 1}), DDim{3, 5});
        check({-1}, exact, DDim{3, 4});
        auto two = reference::permute(exact, {1, 0, 2});
        two.dims = DDim{4, 15};
        check({0, 2}, two, DDim{4});
        auto all = exact;
        all.dims = DDim{60};
        check({}, all, DDim{});
      }
    }
  });
}

TEST_CASE("folds of f16 and bf16 have the bits of those of f32, rounded once") {
  CpuDevice device;
  Random random(8);
  const StreamRef stream = device.stream(0);
  for (const DType dtype : {DType::f16, DType::bf16})
    for (int index = 0; index <= static_cast<int>(Reduction::log_sum_exp); ++index)
      for (const std::vector<int>& axes : {std::vector<int>{1}, {0, 2}, {2}}) {
        const auto kind = static_cast<Reduction>(index);
        INFO(name_of(dtype), " ", name_of(kind));
        const Tensor x = cast(random_tensor(random, DType::f32, DDim{5, 9, 700}), dtype, stream);
        const Tensor wide = reduce(kind, cast(x, DType::f32, stream), axes, true, stream);
        CHECK(same_bits(reduce(kind, x, axes, true, stream), cast(wide, dtype, stream)));
      }
}

TEST_CASE("a sum is one chain over ascending elements, restarted every 512, whatever stands beside it") {
  CpuDevice one(1), two(2);
  Random random(2);
  const Tensor x = random_tensor(random, DType::f32, DDim{37, 1300});
  const Tensor sums = reduce(Reduction::sum, x, {1}, false, one.stream(0));
  for (std::int64_t row = 0; row < 37; ++row) {
    float total = 0;
    for (std::int64_t begin = 0; begin < 1300; begin += 512) {
      float sum = 0;
      for (std::int64_t i = begin; i < std::min<std::int64_t>(1300, begin + 512); ++i) sum += x.data<float>()[row * 1300 + i];
      total = begin == 0 ? sum : total + sum;
    }
    CHECK(sums.data<float>()[row] == total);
  }
  for (const Reduction kind : {Reduction::sum, Reduction::l2, Reduction::log_sum_exp, Reduction::mean}) {
    const Tensor whole = reduce(kind, x, {1}, false, two.stream(0));
    CHECK(same_bits(reduce(kind, clone(x.permute({1, 0}), one.stream(0)), {0}, false, one.stream(0)), whole));
    for (const std::int64_t row : {0, 7, 36})
      CHECK(same_bits(reduce(kind, x.rows(row, row + 1), {1}, false, one.stream(0)), whole.rows(row, row + 1)));
  }
}

TEST_CASE("sums over rows have the bits of sums along them, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(3);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const std::int64_t rows : {0, 1, 511, 513, 1100})
        for (const std::int64_t columns : {1, 7, 16, 75, 131}) {
          const Tensor x = random_tensor(random, dtype, DDim{columns, rows});
          const Tensor wanted = reduce(Reduction::sum, x, {1}, false, one.stream(0));
          const Tensor turned = clone(x.permute({1, 0}), one.stream(0));
          CHECK(same_bits(reduce(Reduction::sum, turned, {0}, false, one.stream(0)), wanted));
          CHECK(same_bits(reduce(Reduction::sum, turned, {0}, false, two.stream(0)), wanted));
        }
  });
}

TEST_CASE("the greatest and the least are the last NaN, else the first of equal ones, along rows and over them, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice device;
    Random random(5);
    for (const std::int64_t n : {1, 3, 16, 40, 150})
      for (const bool strange : {false, true}) {
        constexpr std::int64_t rows = 45;
        std::vector<float> values;
        for (std::int64_t i = 0; i < rows * n; ++i) {
          const auto digit = static_cast<float>(random.between(-1, 1));
          values.push_back(strange && random.between(0, 60) == 0 ? std::nanf("") : digit == 0 ? (random.coin() ? 0.0f : -0.0f) : 0 * digit);
        }
        for (std::int64_t row = 0; row < rows; row += 2) values[static_cast<std::size_t>(row * n)] = row % 4 == 0 ? 2.0f : -2.0f;
        const Tensor x = Tensor::from(values, DDim{rows, n});
        const Tensor turned = clone(x.permute({1, 0}), device.stream(0));
        for (const bool greatest : {true, false}) {
          std::vector<float> wanted;
          std::vector<std::int64_t> places;
          for (std::int64_t row = 0; row < rows; ++row) {
            const float* const of = values.data() + row * n;
            float most = of[0];
            std::int64_t place = 0;
            for (std::int64_t i = 1; i < n; ++i) {
              if (most == most && (of[i] != of[i] || (greatest ? of[i] > most : of[i] < most))) place = i;
              if (of[i] != of[i] || (greatest ? of[i] > most : of[i] < most)) most = of[i];
            }
            wanted.push_back(most);
            places.push_back(place);
          }
          const Reduction kind = greatest ? Reduction::max : Reduction::min;
          const Tensor exact = Tensor::from(wanted, DDim{rows});
          CHECK(same_bits(reduce(kind, x, {1}, false, device.stream(0)), exact));
          CHECK(same_bits(reduce(kind, turned, {0}, false, device.stream(0)), exact));
          const Tensor found = greatest ? argmax(x, 1, false, false, device.stream(0)) : argmin(x, 1, false, false, device.stream(0));
          CHECK(found.to_vector<std::int64_t>() == places);
          const Tensor over =
              greatest ? argmax(turned, 0, false, false, device.stream(0)) : argmin(turned, 0, false, false, device.stream(0));
          CHECK(over.to_vector<std::int64_t>() == places);
          CHECK(same_bits(argmax(turned, 0, false, true, device.stream(0)), argmax(x, 1, false, true, device.stream(0))));
        }
      }
  });
}

TEST_CASE("folds of middle axes and of all axes have the bits of rows that are folded alone") {
  CpuDevice one(1), two(2);
  Random random(6);
  const Tensor x = random_tensor(random, DType::f32, DDim{5, 70, 19});
  for (const Reduction kind :
       {Reduction::sum, Reduction::mean, Reduction::max, Reduction::min, Reduction::l1, Reduction::l2, Reduction::sum_square}) {
    INFO(name_of(kind));
    const Tensor rows = clone(x.permute({0, 2, 1}), one.stream(0));
    const Tensor wanted = reduce(kind, rows, {2}, false, one.stream(0));
    CHECK(same_bits(reduce(kind, x, {1}, false, two.stream(0)), wanted));
    for (std::int64_t i = 0; i < 5; ++i) CHECK(same_bits(reduce(kind, x.rows(i, i + 1), {1}, false, one.stream(0)), wanted.rows(i, i + 1)));
    CHECK(same_bits(reduce(kind, x, {}, false, two.stream(0)),
                    reduce(kind, x.reshape(DDim{1, 5 * 70 * 19}), {1}, false, one.stream(0)).reshape(DDim{})));
  }
}

TEST_CASE("folds of the axes around one have the bits of rows that are folded alone, however the pieces lie in the blocks of a sum") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    CpuDevice one(1), two(2);
    Random random(7);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const DDim& dims : {DDim{5, 9, 19}, DDim{3, 9, 1100}, DDim{40, 9, 512}, DDim{4, 9, 1}, DDim{0, 9, 5}})
        for (const Reduction kind : {Reduction::sum, Reduction::mean, Reduction::max, Reduction::min, Reduction::l2}) {
          if (dims.elements() == 0 && kind != Reduction::sum) continue;
          INFO(name_of(kind), " ", dims.to_string());
          const Tensor x = random_tensor(random, dtype, dims);
          const Tensor rows = clone(x.permute({1, 0, 2}), one.stream(0)).reshape(DDim{dims[1], dims[0] * dims[2]});
          const Tensor wanted = reduce(kind, rows, {1}, false, one.stream(0));
          CHECK(same_bits(reduce(kind, x, {0, 2}, false, one.stream(0)), wanted));
          CHECK(same_bits(reduce(kind, x, {0, 2}, false, two.stream(0)), wanted));
        }
  });
}

TEST_CASE("the extreme of several pieces is the last NaN, else the first of equal ones") {
  CpuDevice device;
  std::vector<float> values(2 * 2 * 20, -1.0f);
  const auto at = [&](int piece, int row, int i) -> float& { return values[static_cast<std::size_t>((piece * 2 + row) * 20 + i)]; };
  at(0, 0, 3) = -0.0f;
  at(1, 0, 2) = 0.0f;
  at(0, 1, 7) = std::nanf("1");
  at(1, 1, 4) = 5.0f;
  const Tensor found = reduce(Reduction::max, Tensor::from(values, DDim{2, 2, 20}), {0, 2}, false, device.stream(0));
  CHECK(same_bits(found, Tensor::from<float>({-0.0f, std::nanf("1")})));
}

TEST_CASE("integers wrap, bool takes max and min alone") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  const Tensor x = Tensor::from<std::int32_t>({2000000000, 2000000000, -7});
  CHECK(reduce(Reduction::sum, x, {}, false, stream).item_int() == static_cast<std::int32_t>(3999999993u));
  CHECK(reduce(Reduction::mean, Tensor::from<std::int64_t>({-3, -4}), {}, false, stream).item_int() == -3);
  CHECK(reduce(Reduction::l1, Tensor::from<std::int64_t>({-3, 4}), {}, false, stream).item_int() == 7);
  CHECK(reduce(Reduction::max, Tensor::from<bool>({false, true}), {}, false, stream).to_vector<bool>()[0]);
  CHECK_FALSE(reduce(Reduction::min, Tensor::from<bool>({false, true}), {}, false, stream).to_vector<bool>()[0]);
  CHECK_THROWS_AS(reduce(Reduction::sum, Tensor::from<bool>({false, true}), {}, false, stream), DTypeError);
  CHECK_THROWS_AS(reduce(Reduction::l2, x, {}, false, stream), DTypeError);
}

TEST_CASE("no elements fold to what each reduction says, or are an error") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  const Tensor none(DType::f32, DDim{2, 0});
  CHECK(reduce(Reduction::sum, none, {1}, false, stream).to_vector<float>() == std::vector<float>{0, 0});
  CHECK(reduce(Reduction::prod, none, {1}, true, stream).to_vector<float>() == std::vector<float>{1, 1});
  CHECK(std::isnan(reduce(Reduction::mean, none, {1}, false, stream).to_vector<float>()[0]));
  CHECK(reduce(Reduction::log_sum_exp, none, {1}, false, stream).to_vector<float>()[0] == -std::numeric_limits<float>::infinity());
  CHECK_THROWS_WITH_AS(reduce(Reduction::max, none, {1}, false, stream),
                       "reduce max: expected at least one element to fold, found f32[2, 0] on cpu", ArgumentError);
  CHECK(reduce(Reduction::max, none, {0}, false, stream).dims() == DDim{0});
}

TEST_CASE("log_sum_exp keeps infinities, and NaN wins in max") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  constexpr double inf = std::numeric_limits<double>::infinity();
  CHECK(reduce(Reduction::log_sum_exp, Tensor::from<double>({-inf, -inf}), {}, false, stream).item() == -inf);
  CHECK(reduce(Reduction::log_sum_exp, Tensor::from<double>({1, inf}), {}, false, stream).item() == inf);
  CHECK(reduce(Reduction::log_sum_exp, Tensor::from<double>({1000, 1000}), {}, false, stream).item() ==
        doctest::Approx(1000 + std::log(2.0)));
  CHECK(std::isnan(reduce(Reduction::max, Tensor::from<double>({1, std::nan(""), 2}), {}, false, stream).item()));
}

TEST_CASE("argmax and argmin give the first or the last place") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  const Tensor x = Tensor::from(std::vector<float>{1, 5, 5, 2, 2, 2}, DDim{2, 3});
  CHECK(argmax(x, 1, false, false, stream).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0});
  CHECK(argmax(x, 1, false, true, stream).to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 2});
  CHECK(argmin(x, 0, true, false, stream).dims() == DDim{1, 3});
  CHECK(argmin(x, 0, false, false, stream).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 1});
  CHECK(argmax(Tensor::from<float>({1, std::nanf(""), 3}), 0, false, false, stream).item_int() == 1);
  CHECK_THROWS_AS(argmax(Tensor(DType::f32, DDim{2, 0}), 1, false, false, stream), ArgumentError);
}

TEST_CASE("an axis outside is an error that names it") {
  CpuDevice device;
  CHECK_THROWS_WITH_AS(reduce(Reduction::sum, Tensor::from<float>({1}), {1}, false, device.stream(0)),
                       "reduce: expected an axis of [1], found 1", IndexError);
}

}  // namespace millrace::testing
