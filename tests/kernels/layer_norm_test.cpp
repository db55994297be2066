// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/layer_norm.h>

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <support/chained_sum.h>

namespace millrace::testing {
namespace {

reference::Values normed(const reference::Values& x, std::size_t n, const reference::Values& scale, const reference::Values* bias,
                         double epsilon) {
  reference::Values made = x;
  for (std::size_t row = 0; row < x.at.size() / n; ++row) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < n; ++i) mean += x.at[row * n + i] / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) variance += std::pow(x.at[row * n + i] - mean, 2) / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) {
      double& y = made.at[row * n + i];
      y = (y - mean) / std::sqrt(variance + epsilon) * scale.at[i] + (bias == nullptr ? 0 : bias->at[i]);
    }
  }
  return made;
}

}  // namespace

TEST_CASE("layer norm over one axis or several agrees with the reference on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(4);
    for (const DType dtype : floats) {
      const Tensor x = random_tensor(random, dtype, DDim{5, 4, 6}, 2), scale = random_tensor(random, dtype, DDim{6}),
                   bias = random_tensor(random, dtype, DDim{6});
      const auto addend = reference::values(bias);
      const Tensor device_bias = on.up(bias);
      CHECK(error_of(on.down(layer_norm(on.up(x), on.up(scale), &device_bias, -1, 1e-5, on.stream())),
                     normed(reference::values(x), 6, reference::values(scale), &addend, 1e-5)) <= 30 * rounding(dtype));
      const Tensor both = random_tensor(random, dtype, DDim{4, 6});
      CHECK(error_of(on.down(layer_norm(on.up(x), on.up(both), nullptr, 1, 1e-3, on.stream())),
                     normed(reference::values(x), 24, reference::values(both), nullptr, 1e-3)) <= 30 * rounding(dtype));
    }
  });
}

TEST_CASE("a row has the same bits in any batch, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(6);
  const Tensor x = random_tensor(random, DType::f32, DDim{64, 700}, 4), scale = random_tensor(random, DType::f32, DDim{700});
  const Tensor whole = layer_norm(x, scale, &scale, 1, 1e-5, one.stream(0));
  CHECK(same_bits(layer_norm(x, scale, &scale, 1, 1e-5, two.stream(0)), whole));
  for (const std::int64_t row : {0, 9, 63})
    CHECK(same_bits(layer_norm(x.rows(row, row + 1), scale, &scale, 1, 1e-5, two.stream(0)), whole.rows(row, row + 1)));
}

namespace {

template <class T>
std::vector<T> normed_row(const std::vector<T>& x, const std::vector<T>& scale, T epsilon) {
  const T mean = chained(x) / static_cast<T>(x.size());
  std::vector<T> squares, made;
  for (const T each : x) squares.push_back((each - mean) * (each - mean));
  const T factor = T{1} / std::sqrt(chained(squares) / static_cast<T>(x.size()) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) made.push_back((x[i] - mean) * factor * scale[i] + scale[i]);
  return made;
}

template <class T>
void check_order(DType dtype) {
  CpuDevice device;
  Random random(9);
  constexpr std::int64_t rows = 6;  // more than go side by side
  for (const std::int64_t n : {1, 15, 16, 17, 33, 700}) {
    const Tensor x = random_tensor(random, dtype, DDim{rows, n}, 4), scale = random_tensor(random, dtype, DDim{n});
    const Tensor made = layer_norm(x, scale, &scale, 1, 1e-5, device.stream(0));
    for (std::int64_t row = 0; row < rows; ++row)
      CHECK(made.rows(row, row + 1).to_vector<T>() ==
            normed_row(x.rows(row, row + 1).to_vector<T>(), scale.to_vector<T>(), static_cast<T>(1e-5)));
  }
}

}  // namespace

TEST_CASE("the order of a sum is that of the contract, to the bit, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    check_order<float>(DType::f32);
    check_order<double>(DType::f64);
  });
}

TEST_CASE("no rows are fine, a scale that does not stretch is an error that names both shapes") {
  CpuDevice device;
  const Tensor scale = Tensor::from<float>({1, 2, 3});
  CHECK(layer_norm(Tensor(DType::f32, DDim{0, 3}), scale, nullptr, 1, 1e-5, device.stream(0)).dims() == DDim{0, 3});
  const Tensor x = Tensor::from(std::vector<float>(8, 1.0f), DDim{2, 4});
  CHECK_THROWS_WITH_AS(layer_norm(x, scale, nullptr, 1, 1e-5, device.stream(0)), doctest::Contains("[3]"), ShapeError);
}

}  // namespace millrace::testing
