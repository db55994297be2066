// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_scatter.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {
using List = std::vector<std::int64_t>;
}  // namespace

TEST_CASE("each sequence of updates goes to its own row, on every device and dtype") {
  each_backend([](DeviceUnderTest& on) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32}) {
      const Tensor x = reference::tensor({DDim{3, 4}, std::vector<double>(12, 1)}, dtype);
      const Tensor ids = Tensor::from(List{0, 2, 3, 3}, DDim{4, 1});
      const Tensor updates = reference::tensor({DDim{4, 1}, {5, 6, 7, 8}}, dtype);
      const Tensor y = on.down(sequence_scatter(on.up(x), on.up(ids), on.up(updates), {0, 2, 2, 4}, on.stream()));
      CHECK(y.dtype() == dtype);
      CHECK(reference::values(y).at == std::vector<double>{6, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1, 16});
    }
  });
}

TEST_CASE("a column that is named twice gets its updates in their order, whatever the threads and companions") {
  CpuDevice one(1), two(2);
  Random random(4);
  List offsets{0}, places;
  for (int n = 0; n < 64; ++n) offsets.push_back(offsets.back() + random.between(0, 300));
  for (std::int64_t i = 0; i < offsets.back(); ++i) places.push_back(random.between(0, 9));
  const Tensor ids = Tensor::from(places, DDim{offsets.back()});
  const Tensor x = random_tensor(random, DType::f32, DDim{64, 10}), updates = random_tensor(random, DType::f32, DDim{offsets.back()});
  const Tensor whole = sequence_scatter(x, ids, updates, offsets, two.stream(0));
  for (std::int64_t n = 0; n < 64; ++n) {
    const std::int64_t begin = offsets[static_cast<std::size_t>(n)], end = offsets[static_cast<std::size_t>(n) + 1];
    std::vector<float> row(x.data<float>() + n * 10, x.data<float>() + n * 10 + 10);
    for (std::int64_t i = begin; i < end; ++i)
      row[static_cast<std::size_t>(places[static_cast<std::size_t>(i)])] += updates.data<float>()[i];
    CHECK(whole.rows(n, n + 1).to_vector<float>() == row);
    CHECK(same_bits(sequence_scatter(x.rows(n, n + 1), ids.rows(begin, end), updates.rows(begin, end), {0, end - begin}, one.stream(0)),
                    whole.rows(n, n + 1)));
  }
}

TEST_CASE("ids outside, other counts and other dtypes are errors that name both sides") {
  CpuDevice device;
  const Tensor x = Tensor::from(std::vector<float>(6, 1), DDim{2, 3});
  const auto scatter = [&](const List& ids, const std::vector<float>& updates, const List& offsets) {
    return sequence_scatter(x, Tensor::from(ids, DDim{static_cast<std::int64_t>(ids.size())}),
                            Tensor::from(updates, DDim{static_cast<std::int64_t>(updates.size())}), offsets, device.stream(0));
  };
  CHECK_THROWS_WITH_AS(scatter({3}, {1}, {0, 1, 1}), "sequence_scatter: expected an id within axis 1 of [2, 3], found 3", IndexError);
  CHECK_THROWS_AS(scatter({-1}, {1}, {0, 1, 1}), IndexError);
  CHECK_THROWS_WITH_AS(scatter({1, 1}, {1}, {0, 1, 2}), doctest::Contains("i64[2] on cpu and f32[1] on cpu"), ShapeError);
  CHECK_THROWS_WITH_AS(scatter({1}, {1}, {0, 1}), doctest::Contains("each row of f32[2, 3] on cpu, found 1"), LoDError);
  CHECK_THROWS_AS(scatter({1}, {1}, {0, 2, 1}), LoDError);
  CHECK_THROWS_AS(sequence_scatter(x, Tensor::from<float>({1}), Tensor::from<float>({1}), {0, 1, 1}, device.stream(0)), DTypeError);
  CHECK(scatter({}, {}, {0, 0, 0}).to_vector<float>() == std::vector<float>(6, 1));
}

}  // namespace millrace::testing
