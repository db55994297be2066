// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/row_conv.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <reference/sequence.h>

namespace millrace::testing {
namespace {
using Offsets = std::vector<std::int64_t>;
}  // namespace

TEST_CASE("a row sees itself and the rows after it in its own sequence") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({1, 2, 3, 4});
  const Tensor w = Tensor::from<float>({1, 10});
  const Tensor y = row_conv(x.reshape(DDim{4, 1}), w.reshape(DDim{2, 1}), {0, 3, 4}, device.stream(0));
  CHECK(y.to_vector<float>() == std::vector<float>{21, 32, 3, 4});
}

TEST_CASE("a look-ahead convolution agrees with the reference on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(3);
    const Offsets offsets{0, 2, 2, 5, 25};
    for (const DType dtype : floats)
      for (const std::int64_t reach : {1, 3, 40}) {
        const Tensor x = random_tensor(random, dtype, DDim{25, 7}), w = random_tensor(random, dtype, DDim{reach, 7});
        const auto expected = reference::row_conv(reference::values(x), reference::values(w), offsets);
        CHECK(error_of(on.down(row_conv(on.up(x), on.up(w), offsets, on.stream())), expected) <= 20 * rounding(dtype));
      }
  });
}

TEST_CASE("a convolved sequence has the same bits alone and among others, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(4);
  const Offsets offsets{0, 300, 300, 301, 900};
  const Tensor x = random_tensor(random, DType::f32, DDim{900, 37}), w = random_tensor(random, DType::f32, DDim{5, 37});
  const Tensor whole = row_conv(x, w, offsets, two.stream(0));
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    const Tensor alone = row_conv(x.rows(offsets[n], offsets[n + 1]), w, {0, offsets[n + 1] - offsets[n]}, one.stream(0));
    CHECK(same_bits(alone, whole.rows(offsets[n], offsets[n + 1])));
  }
}

TEST_CASE("taps of another width are an error that names both, and no taps give zeros") {
  CpuDevice device;
  const Tensor x = Tensor::from(std::vector<float>(6, 1), DDim{2, 3});
  CHECK_THROWS_WITH_AS(row_conv(x, Tensor::from(std::vector<float>(2, 1), DDim{1, 2}), {0, 2}, device.stream(0)),
                       "row_conv: expected x of [T, C] and w of [K, C], found f32[2, 3] on cpu and f32[1, 2] on cpu", ShapeError);
  CHECK_THROWS_AS(row_conv(x, Tensor::from(std::vector<double>(3, 1), DDim{1, 3}), {0, 2}, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(row_conv(x, x, {0, 3}, device.stream(0)), LoDError);
  CHECK(row_conv(x, Tensor(DType::f32, DDim{0, 3}), {0, 2}, device.stream(0)).to_vector<float>() == std::vector<float>(6, 0));
}

}  // namespace millrace::testing
