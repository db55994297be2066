// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/softmax.h>

#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

/// softmax of each row of [R, n].
reference::Values rows_softmax(const reference::Values& x, bool logarithm) {
  reference::Values made = x;
  const auto n = static_cast<std::size_t>(x.dims[-1]);
  for (std::size_t row = 0; row < x.at.size() / n; ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += std::exp(x.at[row * n + i]);
    for (std::size_t i = 0; i < n; ++i)
      made.at[row * n + i] = logarithm ? x.at[row * n + i] - std::log(sum) : std::exp(x.at[row * n + i]) / sum;
  }
  return made;
}

}  // namespace

TEST_CASE("softmax and log_softmax along any axis agree with the reference on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(4);
    for (const DType dtype : floats) {
      const Tensor x = random_tensor(random, dtype, DDim{3, 7, 11}, 5);
      const auto last = rows_softmax(reference::values(x), false);
      CHECK(error_of(on.down(softmax(on.up(x), -1, on.stream())), last) <= 8 * rounding(dtype));
      const auto middle = reference::permute(rows_softmax(reference::permute(reference::values(x), {0, 2, 1}), true), {0, 2, 1});
      CHECK(error_of(on.down(log_softmax(on.up(x), 1, on.stream())), middle) <= 8 * rounding(dtype));
    }
  });
}

TEST_CASE("a row has the same bits in any batch, along any axis, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(6);
  const Tensor x = random_tensor(random, DType::f32, DDim{64, 700}, 4);
  const Tensor whole = softmax(x, 1, one.stream(0));
  CHECK(same_bits(softmax(x, 1, two.stream(0)), whole));
  CHECK(same_bits(softmax(clone(x.permute({1, 0}), one.stream(0)), 0, two.stream(0)).permute({1, 0}), whole));
  for (const std::int64_t row : {0, 5, 63}) CHECK(same_bits(softmax(x.rows(row, row + 1), 1, one.stream(0)), whole.rows(row, row + 1)));
}

TEST_CASE("a row of a softmax has the same bits with infinitely unlikely elements behind it, on every instruction set") {
  Random random(7);
  each_instruction_set([&](const std::string& name) {
    INFO(name);
    CpuDevice device;
    for (const std::int64_t n : {1, 7, 16, 33, 480, 1030}) {
      const Tensor x = random_tensor(random, DType::f32, DDim{2, n}, 4);
      Tensor longer(DType::f32, DDim{2, n + 21});
      for (std::int64_t row = 0; row < 2; ++row)
        for (std::int64_t i = 0; i < n + 21; ++i)
          longer.mutable_data<float>()[row * (n + 21) + i] = i < n ? x.data<float>()[row * n + i] : -std::numeric_limits<float>::infinity();
      CHECK(same_bits(clone(softmax(longer, 1, device.stream(0)).slice(1, 0, n), device.stream(0)), softmax(x, 1, device.stream(0))));
      CHECK(
          same_bits(clone(log_softmax(longer, 1, device.stream(0)).slice(1, 0, n), device.stream(0)), log_softmax(x, 1, device.stream(0))));
    }
  });
}

TEST_CASE("a NaN anywhere makes its whole row NaN, and no other row") {
  CpuDevice device;
  for (const std::int64_t n : {3, 16, 75})
    for (std::int64_t at = 0; at < n; ++at) {
      std::vector<float> values(static_cast<std::size_t>(2 * n), 1.0f);
      values[static_cast<std::size_t>(at)] = std::nanf("");
      for (const bool logarithm : {false, true}) {
        const Tensor x = Tensor::from(values, DDim{2, n});
        const std::vector<float> y = (logarithm ? log_softmax(x, 1, device.stream(0)) : softmax(x, 1, device.stream(0))).to_vector<float>();
        for (std::int64_t i = 0; i < 2 * n; ++i) REQUIRE(std::isnan(y[static_cast<std::size_t>(i)]) == (i < n));
      }
    }
}

TEST_CASE("large and infinite elements do not overflow, and no elements are fine") {
  CpuDevice device;
  const Tensor y = softmax(Tensor::from<float>({1000, 1000, -1000}), 0, device.stream(0));
  CHECK(y.to_vector<float>() == std::vector<float>{0.5f, 0.5f, 0});
  CHECK(softmax(Tensor(DType::f32, DDim{3, 0}), 1, device.stream(0)).dims() == DDim{3, 0});
  CHECK(softmax(Tensor(DType::f32, DDim{0, 3}), 1, device.stream(0)).dims() == DDim{0, 3});
  CHECK_THROWS_AS(softmax(Tensor::from<std::int32_t>({1}), 0, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(softmax(Tensor::from<float>({1}), 1, device.stream(0)), IndexError);
}

}  // namespace millrace::testing
