// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/layer_norm_gradient.h>

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <support/chained_sum.h>

namespace millrace::testing {
namespace {

struct Expected {
  reference::Values x, rows;
};

/// By the formula of the header, in f64, for rows of n elements.
Expected gradients(const reference::Values& x, const reference::Values& scale, const reference::Values& g, std::size_t n, double epsilon) {
  Expected made{x, x};
  const auto count = static_cast<double>(n);
  for (std::size_t row = 0; row < x.at.size() / n; ++row) {
    const std::size_t at = row * n;
    double mean = 0, variance = 0, total = 0, along = 0;
    for (std::size_t i = 0; i < n; ++i) mean += x.at[at + i] / count;
    for (std::size_t i = 0; i < n; ++i) variance += std::pow(x.at[at + i] - mean, 2) / count;
    const double factor = 1 / std::sqrt(variance + epsilon);
    for (std::size_t i = 0; i < n; ++i) {
      total += g.at[at + i] * scale.at[i] / count;
      along += g.at[at + i] * scale.at[i] * (x.at[at + i] - mean) * factor / count;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double normal = (x.at[at + i] - mean) * factor;
      made.rows.at[at + i] = g.at[at + i] * normal;
      made.x.at[at + i] = factor * (g.at[at + i] * scale.at[i] - total - normal * along);
    }
  }
  return made;
}

}  // namespace

TEST_CASE("the gradient of a layer norm over one axis or several agrees with the reference on every device") {
  each_backend([](DeviceUnderTest& on) {
    Random random(5);
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Tensor x = random_tensor(random, dtype, DDim{5, 4, 6}, 2), g = random_tensor(random, dtype, DDim{5, 4, 6}),
                   scale = random_tensor(random, dtype, DDim{6}), both = random_tensor(random, dtype, DDim{4, 6});
      const LayerNormGradient one = layer_norm_gradient(on.up(x), on.up(scale), on.up(g), -1, 1e-5, on.stream());
      const Expected wanted = gradients(reference::values(x), reference::values(scale), reference::values(g), 6, 1e-5);
      CHECK(error_of(on.down(one.x), wanted.x) <= 100 * rounding(dtype));
      CHECK(error_of(on.down(one.rows), wanted.rows) <= 30 * rounding(dtype));
      const LayerNormGradient two = layer_norm_gradient(on.up(x), on.up(both), on.up(g), 1, 1e-3, on.stream());
      const Expected also = gradients(reference::values(x), reference::values(both), reference::values(g), 24, 1e-3);
      CHECK(error_of(on.down(two.x), also.x) <= 100 * rounding(dtype));
      CHECK(error_of(on.down(two.rows), also.rows) <= 30 * rounding(dtype));
    }
  });
}

TEST_CASE("a row of the gradient has the same bits in any batch and any strides, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(6);
  const Tensor x = random_tensor(random, DType::f32, DDim{64, 700}, 4), g = random_tensor(random, DType::f32, DDim{64, 700}),
               scale = random_tensor(random, DType::f32, DDim{700});
  const LayerNormGradient whole = layer_norm_gradient(x, scale, g, 1, 1e-5, one.stream(0));
  const LayerNormGradient split = layer_norm_gradient(x, scale, g, 1, 1e-5, two.stream(0));
  CHECK(same_bits(split.x, whole.x));
  CHECK(same_bits(split.rows, whole.rows));
  const Tensor turned = clone(x.permute({1, 0}), one.stream(0)).permute({1, 0});
  CHECK(same_bits(layer_norm_gradient(turned, scale, g, 1, 1e-5, one.stream(0)).x, whole.x));
  for (const std::int64_t row : {0, 9, 63}) {
    const LayerNormGradient alone = layer_norm_gradient(x.rows(row, row + 1), scale, g.rows(row, row + 1), 1, 1e-5, two.stream(0));
    CHECK(same_bits(alone.x, whole.x.rows(row, row + 1)));
    CHECK(same_bits(alone.rows, whole.rows.rows(row, row + 1)));
  }
}

namespace {

template <class T>
void check_row(const std::vector<T>& x, const std::vector<T>& scale, const std::vector<T>& g, T epsilon, const std::vector<T>& found,
               const std::vector<T>& found_rows) {
  const std::size_t n = x.size();
  const T count = static_cast<T>(n), mean = chained(x) / count;
  std::vector<T> squares, slopes, products, normal, rows, made;
  for (const T each : x) squares.push_back((each - mean) * (each - mean));
  const T factor = T{1} / std::sqrt(chained(squares) / count + epsilon);
  for (std::size_t i = 0; i < n; ++i) {
    normal.push_back((x[i] - mean) * factor);
    slopes.push_back(g[i] * scale[i]);
    products.push_back(slopes[i] * normal[i]);
    rows.push_back(g[i] * normal[i]);
  }
  const T total = chained(slopes) / count, along = chained(products) / count;
  for (std::size_t i = 0; i < n; ++i) made.push_back(factor * ((slopes[i] - total) - normal[i] * along));
  CHECK(found == made);
  CHECK(found_rows == rows);
}

template <class T>
void check_order(DType dtype) {
  CpuDevice device;
  Random random(9);
  constexpr std::int64_t rows = 6;  // more than go side by side
  for (const std::int64_t n : {1, 15, 16, 17, 33, 700}) {
    const Tensor x = random_tensor(random, dtype, DDim{rows, n}, 4), scale = random_tensor(random, dtype, DDim{n}),
                 g = random_tensor(random, dtype, DDim{rows, n});
    const LayerNormGradient made = layer_norm_gradient(x, scale, g, 1, 1e-5, device.stream(0));
    const auto row_of = [](const Tensor& of, std::int64_t row) { return of.rows(row, row + 1).template to_vector<T>(); };
    for (std::int64_t row = 0; row < rows; ++row)
      check_row(row_of(x, row), scale.to_vector<T>(), row_of(g, row), static_cast<T>(1e-5), row_of(made.x, row), row_of(made.rows, row));
  }
}

}  // namespace

TEST_CASE("the order of the sums of the gradient is that of the contract, to the bit, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    check_order<float>(DType::f32);
    check_order<double>(DType::f64);
  });
}

TEST_CASE("the gradient of a layer norm of no rows is empty, and other extents or dtypes are errors that name both sides") {
  CpuDevice device;
  const Tensor scale = Tensor::from<float>({1, 2, 3});
  const Tensor none(DType::f32, DDim{0, 3});
  CHECK(layer_norm_gradient(none, scale, none, 1, 1e-5, device.stream(0)).x.dims() == DDim{0, 3});
  const Tensor x = Tensor::from(std::vector<float>(6, 1.0f), DDim{2, 3}), g = Tensor::from(std::vector<float>(3, 1.0f), DDim{1, 3});
  CHECK_THROWS_WITH_AS(layer_norm_gradient(x, scale, g, 1, 1e-5, device.stream(0)), doctest::Contains("[1, 3]"), ShapeError);
  const Tensor narrow(DType::bf16, DDim{2, 3});
  CHECK_THROWS_WITH_AS(layer_norm_gradient(narrow, narrow, narrow, 1, 1e-5, device.stream(0)), doctest::Contains("f32 or f64"), DTypeError);
}

}  // namespace millrace::testing
