// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/conv1d.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/sequence_walk.h"
#include "support/step_by_step.h"

using namespace millrace;
using namespace millrace::testing;
using layers::Conv1dOptions, layers::Conv1dWeights;

namespace {

Program program_of(std::int64_t features, const Conv1dWeights& weights, const Conv1dOptions& options, bool as_dense) {
  Program program;
  const build::Guard guard(program);
  const layers::Sequences over = as_dense
                                     ? layers::Sequences(build::input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, features})),
                                                         build::input("lengths", VarType(DType::i64, {DDim::unknown})))
                                     : layers::Sequences(build::input("x", VarType(DType::f32, {DDim::unknown, features}, 1)));
  build::output("y", layers::conv1d(over, weights, options));
  return program;
}

}  // namespace

TEST_CASE("any taps and dilation, causal or not, over ragged and dense sequences, with PyTorch's weights") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t c = random.between(1, 3), m = random.between(1, 4), taps = random.between(1, 5);
    const Conv1dOptions options{.causal = random.coin(), .dilation = random.between(1, 3)};
    const auto w = random_numbers(random, m * c * taps), b = random_numbers(random, m);
    LoD::Level lengths;
    for (std::int64_t s = random.between(0, 3); s >= 0; --s) lengths.push_back(random.between(0, 7));
    lengths.push_back(2);
    const Batch x = random_batch(random, lengths, c);
    const std::int64_t left = options.causal ? taps - 1 : (taps - 1) / 2;
    Batch wanted;
    for (const Rows& rows : x) {
      wanted.emplace_back();
      for (std::size_t t = 0; t < rows.size(); ++t) {
        std::vector<double> y = b;
        for (std::int64_t k = 0; k < taps; ++k) {
          const std::int64_t row = static_cast<std::int64_t>(t) + (k - left) * options.dilation;
          if (row < 0 || std::cmp_greater_equal(row, rows.size())) continue;
          for (std::int64_t unit = 0; unit < m; ++unit)
            for (std::int64_t from = 0; from < c; ++from)
              y[static_cast<std::size_t>(unit)] += rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(from)] *
                                                   w[static_cast<std::size_t>((unit * c + from) * taps + k)];
        }
        wanted.back().push_back(y);
      }
    }
    const Conv1dWeights weights = layers::conv1d_from_pytorch(f32_tensor(w, {m, c, taps}), f32_tensor(b, {m}));
    check_close(on_cpu(program_of(c, weights, options, false), {{"x", ragged(x, c)}})["y"].tensor(), ragged(wanted, m).tensor());
    const std::int64_t steps = *std::max_element(lengths.begin(), lengths.end()) + 1;
    const Feeds feeds{{"x", dense(x, steps, c, 5.0)}, {"lengths", Tensor::from(lengths, {static_cast<std::int64_t>(lengths.size())})}};
    check_close(on_cpu(program_of(c, weights, options, true), feeds)["y"].tensor(), dense(wanted, steps, m, 0.0));
  }
}

TEST_CASE("a causal one streams with the bits of the whole, and one that looks ahead is refused") {
  Random random(1);
  const Conv1dWeights weights = layers::conv1d_from_pytorch(f32_tensor(random_numbers(random, 24), {4, 2, 3}));
  const Program causal = program_of(2, weights, {.dilation = 2}, false);
  const LoDTensor rows = ragged(random_batch(random, {9}, 2), 2);
  CHECK(StepByStep(make_recurrence(causal)).run(rows.tensor()) == bytes_of(on_cpu(causal, {{"x", rows}})["y"].tensor()));
  CHECK_THROWS_WITH_AS(make_recurrence(program_of(2, weights, {.causal = false}, false)), doctest::Contains("from its end"),
                       UnsupportedError);
}

TEST_CASE("weights and dilations that make no convolution are refused") {
  const auto refusal = [](const DDim& weight, const DDim& bias, std::int64_t dilation) -> std::string {
    try {
      program_of(2,
                 {f32_tensor(std::vector<double>(static_cast<std::size_t>(weight.elements()), 0), weight),
                  f32_tensor(std::vector<double>(static_cast<std::size_t>(bias.elements()), 0), bias)},
                 {.dilation = dilation}, false);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  CHECK(says(refusal({2, 3}, {3}, 1), {"conv1d, weight", "[K, C, M]"}));
  CHECK(says(refusal({1, 2, 3}, {4}, 1), {"conv1d, bias", "f32[4]"}));
  CHECK(says(refusal({1, 2, 3}, {3}, 0), {"a dilation of 1 or more", "found 0"}));
}
