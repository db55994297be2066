// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_pool.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <reference/sequence.h>

namespace millrace::testing {
namespace {

using Offsets = std::vector<std::int64_t>;
constexpr SequencePool kinds[] = {SequencePool::average, SequencePool::sum,   SequencePool::sqrt,
                                  SequencePool::max,     SequencePool::first, SequencePool::last};

}  // namespace

TEST_CASE("case 8: each pooling of the seven values, and the value for the empty sequence") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({1, 3, 2, 4, 6, 5, 1});
  const auto pooled = [&](SequencePool kind, double empty) {
    return sequence_pool(kind, x, {0, 2, 5, 7, 7}, empty, device.stream(0)).to_vector<float>();
  };
  using Floats = std::vector<float>;
  CHECK(pooled(SequencePool::average, 0) == Floats{2, 4, 3, 0});
  CHECK(pooled(SequencePool::sum, 0) == Floats{4, 12, 6, 0});
  const Floats scaled = pooled(SequencePool::sqrt, 0);
  CHECK(scaled[0] == doctest::Approx(2.828427));
  CHECK(scaled[1] == doctest::Approx(6.928203));
  CHECK(scaled[2] == doctest::Approx(4.242641));
  CHECK(scaled[3] == 0);
  CHECK(pooled(SequencePool::max, 0) == Floats{3, 6, 5, 0});
  CHECK(pooled(SequencePool::last, 0) == Floats{3, 6, 1, 0});
  CHECK(pooled(SequencePool::first, -1.5) == Floats{1, 2, 5, -1.5});
  CHECK(pooled(SequencePool::max, -1.5) == Floats{3, 6, 5, -1.5});
}

TEST_CASE("every pooling agrees with the reference on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    Random random(3);
    const Offsets offsets{0, 0, 1, 4, 4, 11, 40, 40};
    for (const SequencePool kind : kinds) {
      INFO(name_of(kind));
      for (const DType dtype : floats) {
        const Tensor x = random_tensor(random, dtype, DDim{40, 3, 5});
        const auto expected = reference::sequence_pool(kind, reference::values(x), offsets, 0.5);
        CHECK(error_of(on.down(sequence_pool(kind, on.up(x), offsets, 0.5, on.stream())), expected) <= 40 * rounding(dtype));
      }
    }
  });
}

TEST_CASE("a sequence has the same bits alone and among others, with 1 or 2 threads, from any strides") {
  CpuDevice one(1), two(2);
  Random random(4);
  const Offsets offsets{0, 700, 700, 2000, 2001, 2600};
  const Tensor x = random_tensor(random, DType::f32, DDim{2600, 19});
  for (const SequencePool kind : kinds) {
    INFO(name_of(kind));
    const Tensor whole = sequence_pool(kind, x, offsets, 0, two.stream(0));
    CHECK(same_bits(sequence_pool(kind, clone(x.permute({1, 0}), one.stream(0)).permute({1, 0}), offsets, 0, one.stream(0)), whole));
    for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
      const Tensor alone = sequence_pool(kind, x.rows(offsets[n], offsets[n + 1]), {0, offsets[n + 1] - offsets[n]}, 0, one.stream(0));
      CHECK(same_bits(alone, whole.rows(static_cast<std::int64_t>(n), static_cast<std::int64_t>(n) + 1)));
    }
  }
}

TEST_CASE("a sum is restarted every 512 rows") {
  CpuDevice device;
  Random random(5);
  const Tensor x = random_tensor(random, DType::f32, DDim{1300});
  float total = 0;
  for (std::int64_t begin = 0; begin < 1300; begin += 512) {
    float sum = 0;
    for (std::int64_t i = begin; i < std::min<std::int64_t>(1300, begin + 512); ++i) sum += x.data<float>()[i];
    total = begin == 0 ? sum : total + sum;
  }
  CHECK(sequence_pool(SequencePool::sum, x, {0, 1300}, 0, device.stream(0)).data<float>()[0] == total);
}

TEST_CASE("integers wrap and truncate, and the greatest NaN wins") {
  CpuDevice device;
  const Tensor x = Tensor::from<std::int32_t>({2147483647, 1, -3, -4});
  const auto ints = [&](SequencePool kind) { return sequence_pool(kind, x, {0, 2, 4}, 0, device.stream(0)).to_vector<std::int32_t>(); };
  CHECK(ints(SequencePool::sum) == std::vector<std::int32_t>{-2147483647 - 1, -7});
  CHECK(ints(SequencePool::average) == std::vector<std::int32_t>{-1073741824, -3});
  CHECK(ints(SequencePool::max) == std::vector<std::int32_t>{2147483647, -3});
  const Tensor nan = Tensor::from<float>({1, NAN, 2, -INFINITY});
  const Tensor most = sequence_pool(SequencePool::max, nan, {0, 3, 4}, 0, device.stream(0));
  CHECK(std::isnan(most.data<float>()[0]));
  CHECK(most.data<float>()[1] == -INFINITY);
  CHECK(sequence_pool(SequencePool::max, Tensor::from({false, true, false}), {0, 2, 3}, 0, device.stream(0)).to_vector<bool>() ==
        std::vector<bool>{true, false});
}

TEST_CASE("offsets that do not fit the rows and dtypes without a meaning are errors") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({1, 2, 3});
  const auto pool = [&](const Offsets& offsets) { sequence_pool(SequencePool::sum, x, offsets, 0, device.stream(0)); };
  CHECK_THROWS_WITH_AS(pool({0, 2}),
                       "sequence_pool: expected offsets from 0 to the 3 rows of f32[3] on cpu that never decrease, found 2 offsets that "
                       "end at 2",
                       LoDError);
  CHECK_THROWS_AS(pool({}), LoDError);
  CHECK_THROWS_AS(pool({1, 3}), LoDError);
  CHECK_THROWS_AS(pool({0, 3, 2, 3}), LoDError);
  CHECK_THROWS_AS(pool({0, -1, 3}), LoDError);
  CHECK_THROWS_AS(sequence_pool(SequencePool::sum, Tensor::scalar(1.0f), {0, 1}, 0, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(sequence_pool(SequencePool::sqrt, Tensor::from<std::int64_t>({1}), {0, 1}, 0, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(sequence_pool(SequencePool::sum, Tensor::from({true}), {0, 1}, 0, device.stream(0)), DTypeError);
}

TEST_CASE("no sequences and no columns give nothing") {
  CpuDevice device;
  CHECK(sequence_pool(SequencePool::sum, Tensor(DType::f32, DDim{0, 3}), {0}, 0, device.stream(0)).dims() == DDim{0, 3});
  CHECK(sequence_pool(SequencePool::max, Tensor(DType::f32, DDim{2, 0}), {0, 2}, 0, device.stream(0)).dims() == DDim{1, 0});
  CHECK(sequence_pool(SequencePool::last, Tensor(DType::f32, DDim{0, 2}), {0, 0}, 7, device.stream(0)).to_vector<float>() ==
        std::vector<float>{7, 7});
}

}  // namespace millrace::testing
