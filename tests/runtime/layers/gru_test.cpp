// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/gru.h>

#include <doctest/doctest.h>

#include <reference/recurrent.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/sequence_walk.h"
#include "support/step_by_step.h"

using namespace millrace;
using namespace millrace::testing;
using layers::Direction, layers::GruKeeps, layers::GruOptions, layers::GruReset, layers::GruWeights;
using reference::GruCell, reference::Numbers;

namespace {

constexpr std::int64_t features = 3;
constexpr std::int64_t hidden = 4;

/// Numbers as a source lays them out.
struct Source {
  explicit Source(Random& random)
      : w(random_numbers(random, 3 * hidden * features)),
        r(random_numbers(random, 3 * hidden * hidden)),
        b(random_numbers(random, 3 * hidden)),
        b2(random_numbers(random, 3 * hidden)) {}
  Numbers w, r, b, b2;
};

std::int64_t at(const char* order, char gate) { return static_cast<std::int64_t>(std::string(order).find(gate)); }
std::size_t place(std::int64_t i) { return static_cast<std::size_t>(i); }

/// [3H, C], rows are units, or [C, 3H], columns are units.
GruCell cell_of(const Source& s, const char* order, bool by_rows) {
  GruCell cell;
  cell.hidden = hidden;
  cell.w = [&s, order, by_rows](char gate, std::int64_t unit, std::int64_t k) {
    const std::int64_t row = at(order, gate) * hidden + unit;
    return s.w[place(by_rows ? row * features + k : k * 3 * hidden + row)];
  };
  cell.r = [&s, order, by_rows](char gate, std::int64_t unit, std::int64_t k) {
    const std::int64_t row = at(order, gate) * hidden + unit;
    return s.r[place(by_rows ? row * hidden + k : k * 3 * hidden + row)];
  };
  cell.bias = [&s, order](char gate, std::int64_t unit) { return s.b[place(at(order, gate) * hidden + unit)]; };
  cell.recurrent_bias = [&s, order](char gate, std::int64_t unit) { return s.b2[place(at(order, gate) * hidden + unit)]; };
  return cell;
}

Tensor vector(const Numbers& values) { return f32_tensor(values, {static_cast<std::int64_t>(values.size())}); }

Program program_of(const GruWeights& weights, const GruOptions& options) {
  Program program;
  const build::Guard guard(program);
  const auto made = layers::gru({build::input("x", VarType(DType::f32, {DDim::unknown, features}, 1))}, {weights}, options);
  build::output("y", made.y);
  build::output("h", made.h[0]);
  return program;
}

void check_layer(Random& random, const GruWeights& weights, const GruCell& cell, GruOptions options) {
  const Batch x = random_batch(random, {3, 5, 0, 1}, features);
  for (const bool reverse : {false, true}) {
    options.direction = reverse ? Direction::reverse : Direction::forward;
    std::vector<Rows> states(x.size(), Rows{Numbers(hidden, 0)});
    const Batch wanted = walk(x, reverse, states, [&](const Numbers& row, Rows& state) {
      cell.step(row, state[0]);
      return state[0];
    });
    const RunResult result = on_cpu(program_of(weights, options), {{"x", ragged(x, features)}});
    check_close(result["y"].tensor(), ragged(wanted, hidden).tensor());
    Numbers last;
    for (const Rows& state : states) last.insert(last.end(), state[0].begin(), state[0].end());
    check_close(result["h"].tensor(), f32_tensor(last, {4, hidden}));
  }
}

}  // namespace

TEST_CASE("case 27: PyTorch's GRU: r z n, two biases, reset after the product, z keeps the old state") {
  Random random(1);
  const Source s(random);
  check_layer(
      random,
      layers::gru_from_pytorch(f32_tensor(s.w, {3 * hidden, features}), f32_tensor(s.r, {3 * hidden, hidden}), vector(s.b), vector(s.b2)),
      cell_of(s, "rzn", true), {});
}

TEST_CASE("case 27: ONNX's GRU: z r h, with the reset before the product, and after it with linear_before_reset") {
  Random random(2);
  const Source s(random);
  Numbers both = s.b;
  both.insert(both.end(), s.b2.begin(), s.b2.end());
  const GruWeights weights = layers::gru_from_onnx(f32_tensor(s.w, {1, 3 * hidden, features}), f32_tensor(s.r, {1, 3 * hidden, hidden}),
                                                   f32_tensor(both, {1, 6 * hidden}));
  for (const bool after : {false, true}) {
    GruCell cell = cell_of(s, "zrn", true);
    cell.reset_after = after;
    GruOptions options;
    options.reset = after ? GruReset::after : GruReset::before;
    check_layer(random, weights, cell, options);
  }
}

TEST_CASE("case 27: Keras' GRU: z r h in columns, two rows of biases with reset_after, one without") {
  Random random(3);
  const Source s(random);
  const Tensor kernel = f32_tensor(s.w, {features, 3 * hidden}), recurrent = f32_tensor(s.r, {hidden, 3 * hidden});
  Numbers both = s.b;
  both.insert(both.end(), s.b2.begin(), s.b2.end());
  check_layer(random, layers::gru_from_keras(kernel, recurrent, f32_tensor(both, {2, 3 * hidden})), cell_of(s, "zrn", false), {});
  GruCell before = cell_of(s, "zrn", false);
  before.reset_after = false;
  before.recurrent_bias = nullptr;
  GruOptions options;
  options.reset = GruReset::before;
  check_layer(random, layers::gru_from_keras(kernel, recurrent, vector(s.b)), before, options);
}

TEST_CASE("case 27: Fluid's GRU: u r in one matrix and c in another, reset before, and the complement of u keeps the old state") {
  Random random(4);
  const Source s(random);
  GruCell cell = cell_of(s, "zrn", false);
  cell.r = [&s](char gate, std::int64_t unit, std::int64_t k) {
    if (gate == 'n') return s.r[place(2 * hidden * hidden + k * hidden + unit)];
    return s.r[place(k * 2 * hidden + (gate == 'r' ? hidden : 0) + unit)];
  };
  cell.recurrent_bias = nullptr;
  cell.reset_after = false;
  const GruWeights weights = layers::gru_from_fluid(f32_tensor(s.w, {features, 3 * hidden}), f32_tensor(s.r, {hidden, 3 * hidden}),
                                                    f32_tensor(s.b, {1, 3 * hidden}));
  for (const bool origin_mode : {false, true}) {
    cell.z_keeps = origin_mode;
    GruOptions options;
    options.reset = GruReset::before;
    options.keeps = origin_mode ? GruKeeps::z : GruKeeps::complement;
    check_layer(random, weights, cell, options);
  }
}

TEST_CASE("case 27: TensorFlow's GRUCell: r u and c in two kernels of input and state, and the numbers of its test") {
  // tensorflow/contrib/rnn/python/kernel_tests/core_rnn_cell_test.py, testGRUCell: kernels 0.5, the gates' bias 1, the state 0.1.
  for (const std::int64_t inputs : {2, 3}) {
    const auto halves = [&](std::int64_t columns) {
      return f32_tensor(Numbers(place((inputs + 2) * columns), 0.5), {inputs + 2, columns});
    };
    const GruWeights weights =
        layers::gru_from_tensorflow(halves(4), f32_tensor(Numbers(4, 1), {4}), halves(2), f32_tensor(Numbers(2, 0), {2}));
    GruOptions options;
    options.reset = GruReset::before;
    const LoDTensor found = built(
        [&] {
          const build::Var state = build::parameter("state", f32_tensor(Numbers(2, 0.1), {1, 2}));
          return layers::gru({build::input("x", VarType(DType::f32, {DDim::unknown, inputs}, 1))}, {weights}, options, {state}).h[0];
        },
        {{"x", ragged({{Numbers(place(inputs), 1)}}, inputs)}});
    const double wanted = inputs == 2 ? 0.175991 : 0.156736;
    for (const float h : found.tensor().to_vector<float>()) CHECK(h == doctest::Approx(wanted).epsilon(1e-5));
  }
  Random random(8);
  const Source s(random);
  GruCell cell = cell_of(s, "rzn", false);
  cell.recurrent_bias = nullptr;
  cell.reset_after = false;
  Numbers gates, candidate;
  const auto deal = [](const Numbers& rows, std::int64_t count, Numbers& first, Numbers& last) {
    for (std::int64_t i = 0; i < count * 3 * hidden; ++i) (i % (3 * hidden) < 2 * hidden ? first : last).push_back(rows[place(i)]);
  };
  deal(s.w, features, gates, candidate);
  deal(s.r, hidden, gates, candidate);
  GruOptions options;
  options.reset = GruReset::before;
  check_layer(random,
              layers::gru_from_tensorflow(
                  f32_tensor(gates, {features + hidden, 2 * hidden}), vector(Numbers(s.b.begin(), s.b.begin() + 2 * hidden)),
                  f32_tensor(candidate, {features + hidden, hidden}), vector(Numbers(s.b.begin() + 2 * hidden, s.b.end()))),
              cell, options);
}

TEST_CASE("clip and activations with numbers") {
  Random random(5);
  const Source s(random);
  GruCell cell = cell_of(s, "rzn", true);
  cell.clip = 0.3;
  cell.f = [](double x) { return std::max(0.0, std::min(1.0, 0.3 * x + 0.4)); };
  cell.g = [](double x) { return x < 0 ? 0.1 * x : x; };
  GruOptions options;
  options.clip = 0.3;
  options.gate = {"hard_sigmoid", 0.3, 0.4};
  options.candidate = {"leaky_relu", 0.1};
  check_layer(
      random,
      layers::gru_from_pytorch(f32_tensor(s.w, {3 * hidden, features}), f32_tensor(s.r, {3 * hidden, hidden}), vector(s.b), vector(s.b2)),
      cell, options);
}

TEST_CASE("a GRU streams with the bits of the whole, with either reset") {
  Random random(6);
  const Source s(random);
  const GruWeights weights =
      layers::gru_from_pytorch(f32_tensor(s.w, {3 * hidden, features}), f32_tensor(s.r, {3 * hidden, hidden}), vector(s.b), vector(s.b2));
  for (const GruReset reset : {GruReset::before, GruReset::after}) {
    GruOptions options;
    options.reset = reset;
    const Program program = program_of(weights, options);
    const LoDTensor rows = ragged(random_batch(random, {8}, features), features);
    CHECK(StepByStep(make_recurrence(program)).run(rows.tensor()) == bytes_of(on_cpu(program, {{"x", rows}})["y"].tensor()));
  }
}

TEST_CASE("weights as PyTorch has them are refused with a word on how they are turned") {
  const layers::GruWeights turned{Tensor::from(std::vector<float>(36), {12, 3}), Tensor::from(std::vector<float>(48), {12, 4}), {}, {}};
  CHECK_THROWS_WITH_AS(build_refusal([&] { layers::gru({build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1))}, {turned}); }),
                       doctest::Contains("recurrent: expected [4, 12], found f32[12, 4] on cpu: rows are inputs here"), ShapeError);
}
