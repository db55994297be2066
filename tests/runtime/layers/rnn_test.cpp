// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/rnn.h>

#include <doctest/doctest.h>

#include <reference/recurrent.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/sequence_walk.h"

using namespace millrace;
using namespace millrace::testing;
using layers::Direction, layers::RnnOptions, layers::RnnWeights;
using reference::Numbers, reference::RnnCell;

TEST_CASE("PyTorch's, ONNX's and Keras' RNN, with clip and any activation, forward and reversed") {
  constexpr std::int64_t features = 3;
  constexpr std::int64_t hidden = 4;
  Random random(1);
  const Numbers w = random_numbers(random, hidden * features), r = random_numbers(random, hidden * hidden);
  const Numbers b = random_numbers(random, hidden), b2 = random_numbers(random, hidden);
  Numbers both = b;
  both.insert(both.end(), b2.begin(), b2.end());
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::vector<RnnWeights> all{
      layers::rnn_from_pytorch(f32_tensor(w, {hidden, features}), f32_tensor(r, {hidden, hidden}), f32_tensor(b, {hidden}),
                               f32_tensor(b2, {hidden})),
      layers::rnn_from_onnx(f32_tensor(w, {1, hidden, features}), f32_tensor(r, {1, hidden, hidden}), f32_tensor(both, {1, 2 * hidden})),
      layers::rnn_from_keras(f32_tensor(w, {features, hidden}), f32_tensor(r, {hidden, hidden}), f32_tensor(b, {hidden}))};
  for (std::size_t source = 0; source < all.size(); ++source)
    for (const bool reverse : {false, true})
      for (const bool odd : {false, true}) {
        INFO("source ", source, " reverse ", reverse, " odd ", odd);
        const bool keras = source == 2;
        RnnCell cell;
        cell.hidden = hidden;
        cell.w = [&](char, std::int64_t unit, std::int64_t k) { return w[at(keras ? k * hidden + unit : unit * features + k)]; };
        cell.r = [&](char, std::int64_t unit, std::int64_t k) { return r[at(keras ? k * hidden + unit : unit * hidden + k)]; };
        cell.bias = [&](char, std::int64_t unit) { return b[at(unit)] + (keras ? 0 : b2[at(unit)]); };
        RnnOptions options;
        options.direction = reverse ? Direction::reverse : Direction::forward;
        if (odd) {
          options.clip = cell.clip = 0.4;
          options.activation = {"scaled_tanh", 1.5, 0.7};
          cell.f = [](double x) { return 1.5 * std::tanh(0.7 * x); };
        }
        const Batch x = random_batch(random, {2, 4, 0}, features);
        std::vector<Rows> states(x.size(), Rows{Numbers(hidden, 0)});
        const Batch wanted = walk(x, reverse, states, [&](const Numbers& row, Rows& state) {
          cell.step(row, state[0]);
          return state[0];
        });
        Program program;
        {
          const build::Guard guard(program);
          build::output("y", layers::rnn({build::input("x", VarType(DType::f32, {DDim::unknown, features}, 1))}, {all[source]}, options).y);
        }
        check_close(on_cpu(program, {{"x", ragged(x, features)}})["y"].tensor(), ragged(wanted, hidden).tensor());
      }
}
