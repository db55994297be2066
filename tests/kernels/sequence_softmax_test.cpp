// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_softmax.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <reference/sequence.h>

namespace millrace::testing {
namespace {
using Offsets = std::vector<std::int64_t>;
}  // namespace

TEST_CASE("the rows of each sequence are normalised, column by column, on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(3);
    const Offsets offsets{0, 4, 4, 5, 13, 30, 30};
    for (const DType dtype : floats)
      for (const DDim& dims : {DDim{30}, DDim{30, 1}, DDim{30, 2, 3}}) {
        const Tensor x = random_tensor(random, dtype, dims, 8);
        const auto expected = reference::sequence_softmax(reference::values(x), offsets);
        CHECK(error_of(on.down(sequence_softmax(on.up(x), offsets, on.stream())), expected) <= 20 * rounding(dtype));
      }
  });
}

TEST_CASE("a sequence has the same bits alone and among others, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(4);
  Offsets offsets{0};
  for (int n = 0; n < 64; ++n) offsets.push_back(offsets.back() + random.between(0, 200));
  const Tensor x = random_tensor(random, DType::f32, DDim{offsets.back(), 3}, 8);
  const Tensor whole = sequence_softmax(x, offsets, two.stream(0));
  CHECK(same_bits(sequence_softmax(x, offsets, one.stream(0)), whole));
  for (std::size_t n = 0; n < 64; ++n) {
    const Tensor alone = sequence_softmax(x.rows(offsets[n], offsets[n + 1]), {0, offsets[n + 1] - offsets[n]}, one.stream(0));
    CHECK(same_bits(alone, whole.rows(offsets[n], offsets[n + 1])));
  }
}

TEST_CASE("one row is 1, no rows are none, integers and offsets that do not fit are errors") {
  CpuDevice device;
  CHECK(sequence_softmax(Tensor::from<float>({5, 7}), {0, 1, 2}, device.stream(0)).to_vector<float>() == std::vector<float>{1, 1});
  CHECK(sequence_softmax(Tensor(DType::f32, DDim{0, 2}), {0, 0, 0}, device.stream(0)).dims() == DDim{0, 2});
  CHECK_THROWS_AS(sequence_softmax(Tensor::from<std::int64_t>({5}), {0, 1}, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(sequence_softmax(Tensor::from<float>({5}), {0, 2}, device.stream(0)), LoDError);
  CHECK_THROWS_AS(sequence_softmax(Tensor::scalar(1.0f), {0, 1}, device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
