// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sample.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cpu/philox.h>

namespace millrace::testing {
namespace {

using Tokens = std::vector<std::int64_t>;

Tensor counted(std::int64_t begin, std::int64_t end) {
  Tokens keys;
  for (std::int64_t key = begin; key < end; ++key) keys.push_back(key);
  return Tensor::from(keys, DDim{end - begin});
}

Tensor repeated(const std::vector<float>& row, std::int64_t rows) {
  std::vector<float> all;
  for (std::int64_t n = 0; n < rows; ++n) all.insert(all.end(), row.begin(), row.end());
  return Tensor::from(all, DDim{rows, static_cast<std::int64_t>(row.size())});
}

}  // namespace

TEST_CASE("random words are those of the paper's own vectors") {
  using Four = std::array<std::uint32_t, 4>;
  CHECK(cpu::philox({0, 0, 0, 0}, {0, 0}) == Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(cpu::philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(cpu::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("tokens come as often as their scores say, at any temperature, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const std::int64_t rows = 20000;
    const Tensor x = on.up(repeated({0, std::log(3.0f), -std::numeric_limits<float>::infinity(), std::log(6.0f)}, rows));
    for (const double temperature : {1.0, 0.5}) {
      const Sampled drawn =
          sample_tokens(x, on.up(counted(0, rows)), on.up(Tensor::scalar(std::int64_t{4})), {7, temperature, 0}, on.stream());
      std::vector<double> count(4, 0);
      for (const std::int64_t token : on.down(drawn.tokens).to_vector<std::int64_t>()) count.at(static_cast<std::size_t>(token)) += 1;
      const std::vector<double> weights = temperature == 1.0 ? std::vector<double>{1, 3, 0, 6} : std::vector<double>{1, 9, 0, 36};
      const double sum = weights[0] + weights[1] + weights[3];
      CHECK(count[2] == 0);
      for (std::size_t k = 0; k < 4; ++k) CHECK(std::abs(count[k] / static_cast<double>(rows) - weights[k] / sum) < 0.015);
    }
  });
}

TEST_CASE("a row's token depends on seed, key and step alone, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(1);
  const std::int64_t rows = 300;
  const Tensor x = random_tensor(random, DType::f32, DDim{rows, 50}, 3), step = Tensor::from<std::int32_t>({9});
  const Sampled whole = sample_tokens(x, counted(0, rows), step, {3, 1, 10}, one.stream(0));
  CHECK(same_bits(sample_tokens(x, counted(0, rows), step, {3, 1, 10}, two.stream(0)).tokens, whole.tokens));
  for (std::int64_t n = 0; n < rows; ++n) {
    const Sampled alone = sample_tokens(x.rows(n, n + 1), counted(n, n + 1), step, {3, 1, 10}, two.stream(0));
    CHECK(same_bits(alone.tokens, whole.tokens.rows(n, n + 1)));
    CHECK(same_bits(alone.scores, whole.scores.rows(n, n + 1)));
  }
  const auto differs = [&](const Sampled& other) { return !same_bits(other.tokens, whole.tokens); };
  CHECK(differs(sample_tokens(x, counted(0, rows), step, {4, 1, 10}, one.stream(0))));
  CHECK(differs(sample_tokens(x, counted(1, rows + 1), step, {3, 1, 10}, one.stream(0))));
  CHECK(differs(sample_tokens(x, counted(0, rows), Tensor::from<std::int32_t>({10}), {3, 1, 10}, one.stream(0))));
}

TEST_CASE("only the best are drawn when that is asked, and the score is the one of the row") {
  CpuDevice device;
  const Tensor x = repeated({1, 2, 2, 0}, 200);
  const Sampled one = sample_tokens(x, counted(0, 200), Tensor::scalar(std::int64_t{0}), {1, 5, 1}, device.stream(0));
  CHECK(one.tokens.to_vector<std::int64_t>() == Tokens(200, 1));
  CHECK(one.scores.to_vector<float>() == std::vector<float>(200, 2));
  bool second = false;
  for (const std::int64_t token :
       sample_tokens(x, counted(0, 200), Tensor::scalar(std::int64_t{0}), {1, 5, 2}, device.stream(0)).tokens.to_vector<std::int64_t>()) {
    CHECK((token == 1 || token == 2));
    second = second || token == 2;
  }
  CHECK(second);
}

TEST_CASE("a row that allows nothing gives token 0 with a score of minus infinity, infinity is certain, and no rows are none") {
  CpuDevice device;
  const float never = -std::numeric_limits<float>::infinity(), odd = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from(std::vector<float>{never, odd, 0, -never}, DDim{2, 2});
  const Tensor step = Tensor::scalar(std::int64_t{0});
  const Sampled drawn = sample_tokens(x, counted(0, 2), step, {}, device.stream(0));
  CHECK(drawn.tokens.to_vector<std::int64_t>() == Tokens{0, 1});
  CHECK(drawn.scores.to_vector<float>() == std::vector<float>{never, -never});
  CHECK(sample_tokens(x.rows(0, 0), counted(0, 0), step, {}, device.stream(0)).tokens.dims() == DDim{0, 1});
}

TEST_CASE("what sampling cannot take is an error that names it") {
  CpuDevice device;
  const Tensor x = repeated({1, 2}, 3), step = Tensor::scalar(std::int64_t{0});
  CHECK_THROWS_WITH_AS(sample_tokens(x, counted(0, 2), step, {}, device.stream(0)),
                       "sample_tokens: expected a key for each of 3 rows, found i64[2] on cpu", ShapeError);
  CHECK_THROWS_AS(sample_tokens(x, counted(0, 3), counted(0, 2), {}, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(sample_tokens(x, counted(0, 3), step, {0, 0, 0}, device.stream(0)), ArgumentError);
  CHECK_THROWS_AS(sample_tokens(x, counted(0, 3), step, {0, std::numeric_limits<double>::quiet_NaN(), 0}, device.stream(0)), ArgumentError);
  CHECK_THROWS_AS(sample_tokens(x, counted(0, 3), step, {0, 1, -1}, device.stream(0)), ArgumentError);
  CHECK_THROWS_AS(sample_tokens(x, x, step, {}, device.stream(0)), DTypeError);
}

}  // namespace millrace::testing
