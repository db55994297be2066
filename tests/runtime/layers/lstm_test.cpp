// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/lstm.h>

#include <doctest/doctest.h>

#include <reference/recurrent.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/sequence_walk.h"
#include "support/step_by_step.h"

using namespace millrace;
using namespace millrace::testing;
using layers::Direction, layers::LstmOptions, layers::LstmWeights;
using reference::LstmCell, reference::Numbers;

namespace {

/// Weights as a source lays them out, read by the letter of the gate.
struct Source {
  std::int64_t c, hidden, projected;
  Numbers w, r, b, b2, p, q;
  Source(Random& random, std::int64_t features, std::int64_t units, std::int64_t width = 0)
      : c(features),
        hidden(units),
        projected(width == 0 ? units : width),
        w(random_numbers(random, 4 * units * features)),
        r(random_numbers(random, 4 * units * projected)),
        b(random_numbers(random, 4 * units)),
        b2(random_numbers(random, 4 * units)),
        p(random_numbers(random, 3 * units)),
        q(random_numbers(random, units * projected)) {}

  static std::int64_t at(const char* order, char gate) { return static_cast<std::int64_t>(std::string(order).find(gate)); }
  /// [4H, C]: rows are units.
  LstmCell by_rows(const char* order) const {
    LstmCell cell;
    cell.hidden = hidden;
    cell.w = [=, this](char gate, std::int64_t unit, std::int64_t k) {
      return w[static_cast<std::size_t>((at(order, gate) * hidden + unit) * c + k)];
    };
    cell.r = [=, this](char gate, std::int64_t unit, std::int64_t k) {
      return r[static_cast<std::size_t>((at(order, gate) * hidden + unit) * projected + k)];
    };
    cell.bias = [=, this](char gate, std::int64_t unit) {
      const auto i = static_cast<std::size_t>(at(order, gate) * hidden + unit);
      return b[i] + b2[i];
    };
    return cell;
  }
  /// [C, 4H]: columns are units; one bias.
  LstmCell by_columns(const char* order) const {
    LstmCell cell;
    cell.hidden = hidden;
    cell.w = [=, this](char gate, std::int64_t unit, std::int64_t k) {
      return w[static_cast<std::size_t>(k * 4 * hidden + at(order, gate) * hidden + unit)];
    };
    cell.r = [=, this](char gate, std::int64_t unit, std::int64_t k) {
      return r[static_cast<std::size_t>(k * 4 * hidden + at(order, gate) * hidden + unit)];
    };
    cell.bias = [=, this](char gate, std::int64_t unit) { return b[static_cast<std::size_t>(at(order, gate) * hidden + unit)]; };
    return cell;
  }
  Tensor rows_w() const { return f32_tensor(w, {4 * hidden, c}); }
  Tensor rows_r() const { return f32_tensor(r, {4 * hidden, projected}); }
  Tensor vector(const Numbers& values) const { return f32_tensor(values, {static_cast<std::int64_t>(values.size())}); }
};

/// One direction over a batch, from states of h and c, which become the last.
Batch walked(const Batch& x, const LstmCell& cell, bool reverse, std::vector<Rows>& states) {
  return walk(x, reverse, states, [&](const Numbers& row, Rows& state) {
    cell.step(row, state[0], state[1]);
    return state[0];
  });
}

std::vector<Rows> zeros(std::size_t sequences, std::int64_t h, std::int64_t c) {
  return std::vector<Rows>(sequences, Rows{Numbers(static_cast<std::size_t>(h), 0), Numbers(static_cast<std::size_t>(c), 0)});
}

Program program_of(const Batch&, std::int64_t features, const std::vector<LstmWeights>& weights, const LstmOptions& options) {
  Program program;
  const build::Guard guard(program);
  const auto made = layers::lstm({build::input("x", VarType(DType::f32, {DDim::unknown, features}, 1))}, weights, options);
  build::output("y", made.y);
  for (std::size_t k = 0; k < made.h.size(); ++k) {
    build::output("h" + std::to_string(k), made.h[k]);
    build::output("c" + std::to_string(k), made.c[k]);
  }
  return program;
}

Tensor state_of(const std::vector<Rows>& states, std::size_t which) {
  Numbers values;
  for (const Rows& state : states) values.insert(values.end(), state[which].begin(), state[which].end());
  const auto n = static_cast<std::int64_t>(states.size());
  return f32_tensor(values, {n, static_cast<std::int64_t>(values.size()) / n});
}

/// A layer of one direction against the cell.
void check_layer(Random& random, const Source& source, const LstmWeights& weights, const LstmCell& cell, LstmOptions options = {}) {
  const Batch x = random_batch(random, {3, 5, 0, 1}, source.c);
  for (const bool reverse : {false, true}) {
    options.direction = reverse ? Direction::reverse : Direction::forward;
    std::vector<Rows> states = zeros(x.size(), cell.projection ? cell.projected : source.hidden, source.hidden);
    const Batch wanted = walked(x, cell, reverse, states);
    const RunResult result = on_cpu(program_of(x, source.c, {weights}, options), {{"x", ragged(x, source.c)}});
    check_close(result["y"].tensor(), ragged(wanted, cell.projection ? cell.projected : source.hidden).tensor());
    check_close(result["h0"].tensor(), state_of(states, 0));
    check_close(result["c0"].tensor(), state_of(states, 1));
  }
}

}  // namespace

TEST_CASE("case 27: gates stand where each source says: PyTorch i f g o, ONNX i o f c, Keras i f c o, and two biases are one sum") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const Source source(random, random.between(1, 5), random.between(1, 6));
    const std::int64_t g = 4 * source.hidden;
    check_layer(random, source,
                layers::lstm_from_pytorch(source.rows_w(), source.rows_r(), source.vector(source.b), source.vector(source.b2)),
                source.by_rows("ifgo"));
    Numbers both = source.b;
    both.insert(both.end(), source.b2.begin(), source.b2.end());
    check_layer(random, source,
                layers::lstm_from_onnx(source.rows_w().reshape({1, g, source.c}), source.rows_r().reshape({1, g, source.hidden}),
                                       source.vector(both).reshape({1, 2 * g})),
                source.by_rows("iofg"));
    check_layer(
        random, source,
        layers::lstm_from_keras(f32_tensor(source.w, {source.c, g}), f32_tensor(source.r, {source.hidden, g}), source.vector(source.b)),
        source.by_columns("ifgo"));
  }
}

TEST_CASE("case 27: peepholes, of which o looks at the new c, in ONNX's order i o f") {
  Random random(11);
  const Source source(random, 3, 4);
  const std::int64_t g = 4 * source.hidden;
  LstmCell cell = source.by_rows("iofg");
  cell.bias = nullptr;
  cell.peephole = [&](char gate, std::int64_t unit) {
    return source.p[static_cast<std::size_t>(Source::at("iof", gate) * source.hidden + unit)];
  };
  const LstmWeights weights =
      layers::lstm_from_onnx(source.rows_w().reshape({1, g, source.c}), source.rows_r().reshape({1, g, source.hidden}), std::nullopt,
                             source.vector(source.p).reshape({1, 3 * source.hidden}));
  check_layer(random, source, weights, cell);
  LstmOptions spelled;
  spelled.cell_clip = 0.3;
  cell.cell_clip = 0.3;
  check_layer(random, source, weights, cell, spelled);
}

TEST_CASE("case 27: clip of the gates' sums, clip of the cell, coupled gates, forget bias and other activations, each alone and together") {
  Random random(12);
  const Source source(random, 3, 4);
  const LstmWeights weights =
      layers::lstm_from_pytorch(source.rows_w(), source.rows_r(), source.vector(source.b), source.vector(source.b2));
  for (int choice = 0; choice < 32; ++choice) {
    INFO("choice ", choice);
    LstmOptions options;
    LstmCell cell = source.by_rows("ifgo");
    if (choice & 1) options.gate_clip = cell.gate_clip = 0.4;
    if (choice & 2) options.cell_clip = cell.cell_clip = 0.25;
    if (choice & 4) options.couple_input_forget = cell.coupled = true;
    if (choice & 8) {
      options.forget_bias = 1;
      const auto bias = cell.bias;
      cell.bias = [bias](char gate, std::int64_t unit) { return bias(gate, unit) + (gate == 'f' ? 1 : 0); };
    }
    if (choice & 16) {
      options.gate = {"hard_sigmoid", 0.3, 0.4};
      cell.f = [](double x) { return std::max(0.0, std::min(1.0, 0.3 * x + 0.4)); };
      options.candidate = {"softsign"};
      cell.g = [](double x) { return x / (1 + std::abs(x)); };
      options.output = {"leaky_relu", 0.2};
      cell.h = [](double x) { return x < 0 ? 0.2 * x : x; };
    }
    check_layer(random, source, weights, cell, options);
  }
}

TEST_CASE("a projection, as PyTorch's proj_size, carries fewer units than it computes") {
  Random random(13);
  const Source source(random, 3, 5, 2);
  LstmCell cell = source.by_rows("ifgo");
  cell.projected = source.projected;
  cell.projection = [&](std::int64_t from, std::int64_t to) { return source.q[static_cast<std::size_t>(to * source.hidden + from)]; };
  check_layer(random, source,
              layers::lstm_from_pytorch(source.rows_w(), source.rows_r(), source.vector(source.b), source.vector(source.b2),
                                        f32_tensor(source.q, {source.projected, source.hidden})),
              cell);
}

TEST_CASE("case 27: Fluid's LSTM with projection: gates c i f o, peepholes behind the bias, an activation and two clips") {
  // PaddlePaddle, python/paddle/fluid/tests/unittests/test_lstmp_op.py
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const Source source(random, random.between(1, 5), 4, random.between(1, 6));
    LstmCell cell = source.by_columns("gifo");
    cell.peephole = [&](char gate, std::int64_t unit) {
      return source.p[static_cast<std::size_t>(Source::at("ifo", gate) * source.hidden + unit)];
    };
    cell.projected = source.projected;
    cell.projection = [&](std::int64_t from, std::int64_t to) { return source.q[static_cast<std::size_t>(from * source.projected + to)]; };
    Numbers bias = source.b;
    bias.insert(bias.end(), source.p.begin(), source.p.end());
    const LstmWeights weights = layers::lstm_from_fluid(f32_tensor(source.w, {source.c, 16}), f32_tensor(source.r, {source.projected, 16}),
                                                        f32_tensor(bias, {1, 28}), f32_tensor(source.q, {4, source.projected}));
    check_layer(random, source, weights, cell);
    cell.p = reference::hyperbolic_tangent;
    cell.cell_clip = cell.projection_clip = 0.1;
    LstmOptions options;
    options.projected = {"tanh"};
    options.cell_clip = options.projection_clip = 0.1;
    check_layer(random, source, weights, cell, options);
  }
  CHECK_THROWS_WITH_AS(
      layers::lstm_from_fluid(f32_tensor(Numbers(8, 0), {2, 4}), f32_tensor(Numbers(4, 0), {1, 4}), f32_tensor(Numbers(5, 0), {5})),
      doctest::Contains("expected 4 elements, or with peepholes 7, found"), ShapeError);
}

TEST_CASE("case 27: TensorFlow's cells: gates i j f o in one kernel of input and state, a forget bias, and the numbers of its test") {
  // tensorflow/contrib/rnn/python/kernel_tests/core_rnn_cell_test.py, testBasicLSTMCellWithStateTuple: all weights 0.5, all states 0.1.
  const LstmWeights half = layers::lstm_from_tensorflow(f32_tensor(Numbers(32, 0.5), {4, 8}), f32_tensor(Numbers(8, 0), {8}));
  LstmOptions options;
  options.forget_bias = 1;
  Program program;
  {
    const build::Guard guard(program);
    const build::Var tenth = build::parameter("tenth", f32_tensor(Numbers(2, 0.1), {1, 2}));
    const auto made = layers::lstm({build::input("x", VarType(DType::f32, {DDim::unknown, 2}, 1))}, {half, half}, options, {tenth, tenth},
                                   {tenth, tenth});
    for (std::size_t k = 0; k < 2; ++k) {
      build::output("h" + std::to_string(k), made.h[k]);
      build::output("c" + std::to_string(k), made.c[k]);
    }
  }
  const RunResult result = on_cpu(program, {{"x", ragged({{{1, 1}}}, 2)}});
  check_close(result["c0"].tensor(), f32_tensor({0.68967271, 0.68967271}, {1, 2}));
  check_close(result["h0"].tensor(), f32_tensor({0.44848421, 0.44848421}, {1, 2}));
  check_close(result["c1"].tensor(), f32_tensor({0.39897051, 0.39897051}, {1, 2}));
  check_close(result["h1"].tensor(), f32_tensor({0.24024698, 0.24024698}, {1, 2}));

  Random random(3);
  const Source source(random, 3, 4, 2);
  LstmCell cell = source.by_columns("igfo");
  cell.peephole = [&](char gate, std::int64_t unit) {
    return source.p[static_cast<std::size_t>(Source::at("ifo", gate) * source.hidden + unit)];
  };
  cell.projected = 2;
  cell.projection = [&](std::int64_t from, std::int64_t to) { return source.q[static_cast<std::size_t>(from * 2 + to)]; };
  cell.projection_clip = 0.2;
  Numbers kernel = source.w;
  kernel.insert(kernel.end(), source.r.begin(), source.r.end());
  const auto diagonal = [&](std::int64_t at) { return f32_tensor(Numbers(source.p.begin() + 4 * at, source.p.begin() + 4 * at + 4), {4}); };
  LstmOptions clipped;
  clipped.projection_clip = 0.2;
  check_layer(random, source,
              layers::lstm_from_tensorflow(f32_tensor(kernel, {5, 16}), source.vector(source.b), {diagonal(0), diagonal(1), diagonal(2)},
                                           f32_tensor(source.q, {4, 2})),
              cell, clipped);
}

TEST_CASE("two layers of two directions from given states, ragged and dense with lengths, are each sequence alone") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t c = 3;
    const std::int64_t hidden = 4;
    LoD::Level lengths;
    for (std::int64_t s = random.between(0, 4); s >= 0; --s) lengths.push_back(random.between(0, 6));
    const auto n = static_cast<std::int64_t>(lengths.size());
    const std::int64_t steps = std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end())) + random.between(0, 2);
    const Batch x = random_batch(random, lengths, c);
    std::vector<Source> sources;
    std::vector<LstmWeights> weights;
    std::vector<std::vector<Rows>> states;
    Feeds feeds;
    for (int k = 0; k < 4; ++k) {
      sources.emplace_back(random, k < 2 ? c : 2 * hidden, hidden);
      const Source& own = sources.back();
      weights.push_back(layers::lstm_from_pytorch(own.rows_w(), own.rows_r(), own.vector(own.b), own.vector(own.b2)));
      states.emplace_back();
      for (std::int64_t s = 0; s < n; ++s) states.back().push_back({random_numbers(random, hidden), random_numbers(random, hidden)});
      feeds.emplace("h_" + std::to_string(k), state_of(states.back(), 0));
      feeds.emplace("c_" + std::to_string(k), state_of(states.back(), 1));
    }
    Batch wanted = x;
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const Batch forward = walked(wanted, sources[2 * layer].by_rows("ifgo"), false, states[2 * layer]);
      wanted = beside(forward, walked(wanted, sources[2 * layer + 1].by_rows("ifgo"), true, states[2 * layer + 1]));
    }
    const auto program = [&](bool as_dense) {
      Program made;
      const build::Guard guard(made);
      std::vector<build::Var> h;
      std::vector<build::Var> cells;
      for (int k = 0; k < 4; ++k) {
        h.push_back(build::input("h_" + std::to_string(k), VarType(DType::f32, {DDim::unknown, hidden})));
        cells.push_back(build::input("c_" + std::to_string(k), VarType(DType::f32, {DDim::unknown, hidden})));
      }
      const layers::Sequences over = as_dense ? layers::Sequences(build::input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, c})),
                                                                  build::input("lengths", VarType(DType::i64, {DDim::unknown})))
                                              : layers::Sequences(build::input("x", VarType(DType::f32, {DDim::unknown, c}, 1)));
      LstmOptions options;
      options.direction = Direction::bidirectional;
      const auto result = layers::lstm(over, weights, options, h, cells);
      build::output("y", result.y);
      for (std::size_t k = 0; k < 4; ++k) {
        build::output("last h_" + std::to_string(k), result.h[k]);
        build::output("last c_" + std::to_string(k), result.c[k]);
      }
      return made;
    };
    const auto check_states = [&](const RunResult& result) {
      for (std::size_t k = 0; k < 4; ++k) {
        check_close(result["last h_" + std::to_string(k)].tensor(), state_of(states[k], 0));
        check_close(result["last c_" + std::to_string(k)].tensor(), state_of(states[k], 1));
      }
    };
    feeds["x"] = ragged(x, c);
    const RunResult by_rows = on_cpu(program(false), feeds);
    check_close(by_rows["y"].tensor(), ragged(wanted, 2 * hidden).tensor());
    check_states(by_rows);
    Schedule schedule(seed, policy_of(seed));
    CHECK(bits(on_sim(schedule, program(false), feeds)) == bits(by_rows));
    feeds["x"] = dense(x, steps, c, 7.0);
    feeds["lengths"] = Tensor::from(lengths, {n});
    const RunResult by_steps = on_cpu(program(true), feeds);
    check_close(by_steps["y"].tensor(), dense(wanted, steps, 2 * hidden, 0.0));
    check_states(by_steps);
  }
}

TEST_CASE("an LSTM streams: row by row it gives the bits of the whole, and its step is the op lstm_cell") {
  Random random(21);
  const std::int64_t c = 4;
  std::vector<LstmWeights> weights;
  for (const std::int64_t features : {c, std::int64_t{6}}) {
    const Source source(random, features, 6);
    weights.push_back(layers::lstm_from_pytorch(source.rows_w(), source.rows_r(), source.vector(source.b), source.vector(source.b2)));
  }
  const Batch x = random_batch(random, {9}, c);
  const Program program = program_of(x, c, weights, {});
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.states.size() == 4);
  CHECK(recurrence.at_end == std::vector<std::string>{"h0", "c0", "h1", "c1"});
  std::int64_t cells = 0;
  for (const Op& op : recurrence.step.block(0).ops) cells += op.type == "lstm_cell" ? 1 : 0;
  CHECK(cells == 2);
  const LoDTensor rows = ragged(x, c);
  CHECK(StepByStep(recurrence).run(rows.tensor()) == bytes_of(on_cpu(program, {{"x", rows}})["y"].tensor()));
}

TEST_CASE("weights that do not fit one another or the number of layers are refused by name") {
  Random random(1);
  const Source source(random, 3, 4);
  const LstmWeights good = layers::lstm_from_pytorch(source.rows_w(), source.rows_r(), source.vector(source.b));
  const auto refusal = [&](const std::vector<LstmWeights>& weights, const LstmOptions& options, std::size_t states) -> std::string {
    Program program;
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
    const std::vector<build::Var> given(states, build::input("h", VarType(DType::f32, {DDim::unknown, 4})));
    try {
      layers::lstm({x}, weights, options, given);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  LstmOptions both;
  both.direction = Direction::bidirectional;
  CHECK(says(refusal({good}, both, 0), {"lstm", "each of 2 directions", "found 1"}));
  CHECK(says(refusal({}, {}, 0), {"found 0"}));
  CHECK(says(refusal({good}, {}, 2), {"expected 1 initial states", "found 2"}));
  LstmWeights bad = good;
  bad.bias = Tensor::from<float>({1, 2, 3});
  CHECK(says(refusal({bad}, {}, 0), {"lstm_0, bias", "16", "f32[3]"}));
  LstmOptions unknown;
  unknown.gate = {"softmax"};
  CHECK(says(refusal({good}, unknown, 0), {"activations", "'softmax'"}));
}
