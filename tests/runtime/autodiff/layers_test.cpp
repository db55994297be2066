// SPDX-License-Identifier: Apache-2.0
// Gradients of the recurrent layers (case 26).
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>
#include <millrace/tensor/sanitized.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/central_difference.h"
#include "support/random_lod.h"
#include "support/with_gradients.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// Layers over ragged x [rows, c], or dense x: their outputs and their last states.
struct LayerCase {
  std::string name;
  std::size_t layers = 1;
  layers::Direction direction = layers::Direction::forward;
  std::int64_t projection = 0;  ///< of an LSTM
  bool dense = false;           ///< over x [T, N, c] instead
};

constexpr std::int64_t width = 3;
constexpr std::int64_t hidden = 4;

std::vector<Var> build_layers(Random& random, const LayerCase& each, const Var& x, DType dtype) {
  const auto w = [&](const DDim& dims) { return random_tensor(random, dims, .7, dtype); };
  const std::size_t directions = each.direction == layers::Direction::bidirectional ? 2 : 1;
  const std::int64_t out = each.projection > 0 ? each.projection : hidden;
  std::vector<Var> made;
  std::vector<layers::LstmWeights> lstm;
  std::vector<layers::GruWeights> gru;
  std::vector<layers::RnnWeights> rnn;
  for (std::size_t k = 0; k < each.layers * directions; ++k) {
    const std::int64_t c = k < directions ? width : out * static_cast<std::int64_t>(directions);
    if (each.name == "lstm") {
      lstm.push_back({w({c, 4 * hidden}), w({out, 4 * hidden}), w({4 * hidden}), {}, {}});
      if (each.projection > 0) lstm.back().projection = w({hidden, out});
    } else if (each.name == "gru") {
      gru.push_back({w({c, 3 * hidden}), w({hidden, 3 * hidden}), w({3 * hidden}), w({3 * hidden})});
    } else {
      rnn.push_back({w({c, hidden}), w({hidden, hidden}), w({hidden})});
    }
  }
  if (each.name == "lstm") {
    layers::LstmOptions options;
    options.direction = each.direction;
    const layers::LstmResult result = layers::lstm({x}, lstm, options);
    made = {result.y, result.h.back(), result.c.front()};
  } else if (each.name == "gru") {
    layers::GruOptions options;
    options.direction = each.direction;
    const layers::GruResult result = layers::gru({x}, gru, options);
    made = {result.y, result.h.back()};
  } else {
    layers::RnnOptions options;
    options.direction = each.direction;
    const layers::RnnResult result = layers::rnn({x}, rnn, options);
    made = {result.y, result.h.front()};
  }
  return made;
}

struct Trained {
  Program program;
  std::vector<std::string> names;
};

/// Σ y² / 2 and the sums of the last states' squares, with gradients by x and all weights.
Trained trained(std::uint64_t seed, const LayerCase& each, DType dtype) {
  Trained made;
  Random random(seed);
  VarId loss = no_var;
  BackwardOptions options;
  {
    const Guard guard(made.program);
    const Var x =
        input("x", each.dense ? VarType(dtype, {DDim::unknown, DDim::unknown, width}) : VarType(dtype, {DDim::unknown, width}, 1));
    options.with_respect_to.push_back(x.id());
    const std::vector<Var> results = build_layers(random, each, x, dtype);
    Var total;
    for (const Var& result : results) {
      const Var rows = result.type().lod_depth > 0 ? drop_lod(result) : result;
      const Var part = sum(rows * rows * 0.5);
      total = total.defined() ? total + part : part;
    }
    output("loss", total);
    loss = total.id();
  }
  for (const auto& [var, value] : made.program.parameters())
    if (is_floating(value.dtype())) options.with_respect_to.push_back(var);
  made.names = with_gradients(made.program, loss, options);
  return made;
}

std::vector<LayerCase> layer_cases() {
  using layers::Direction;
  std::vector<LayerCase> all;
  for (const char* name : {"lstm", "gru", "rnn"})
    for (const std::size_t layers : {std::size_t{1}, std::size_t{2}})
      for (const Direction direction : {Direction::forward, Direction::reverse, Direction::bidirectional})
        if (!sanitized || (layers == 1 && direction == Direction::bidirectional))
          all.push_back({name, layers, direction});  // both others in one
  all.push_back({"lstm", 1, Direction::forward, 2});
  all.push_back({"lstm", 2, Direction::bidirectional, 2});
  return all;
}

TEST_CASE("gradients of recurrent layers equal central differences") {
  std::uint64_t seed = 0;
  for (const LayerCase& each : layer_cases()) {
    INFO("layers of ", each.name, ", ", each.layers, " deep, direction ", static_cast<int>(each.direction), ", seed ", ++seed);
    const Trained made = trained(seed, each, DType::f64);
    Random random(seed);
    const LoD lod = LoD::from_lengths({{2, 0, 3, 1}});
    DifferenceOptions options;
    options.seed = seed;
    options.at_most = 1;
    expect_gradients(made.program, {{"x", LoDTensor(random_tensor(random, {lod.rows(), width}, 1, DType::f64), lod)}}, made.names, options);
  }
}

TEST_CASE("gradients of recurrent layers over no rows, one row and many are finite and equal in all backends") {
  std::uint64_t seed = 100;
  for (const LayerCase& each : layer_cases()) {
    INFO("layers of ", each.name, ", ", each.layers, " deep, direction ", static_cast<int>(each.direction), ", seed ", ++seed);
    const Trained made = trained(seed, each, DType::f32);
    Random random(seed);
    const std::int64_t loops = static_cast<std::int64_t>(each.layers) * (each.direction == layers::Direction::bidirectional ? 2 : 1);
    if (each.layers == 2 && each.direction != layers::Direction::bidirectional) continue;  // sanitizers run this, too
    const std::int64_t longest = loops == 1 ? 64 : 5;
    for (const auto& lengths : std::vector<LoD::Level>{{}, {0}, {1}, {2, 0, longest, 1}}) {
      const LoD lod = LoD::from_lengths({lengths});
      const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), width}), lod)}};
      CHECK(compare(made.program, feeds) == (lod.rows() > 0 ? 2 * loops : 0));
    }
  }
}

std::vector<LayerCase> dense_cases() {
  using layers::Direction;
  std::vector<LayerCase> all;
  for (const char* name : {"lstm", "gru", "rnn"}) all.push_back({name, 1, Direction::forward, 0, true});
  all.push_back({"gru", 2, Direction::reverse, 0, true});
  all.push_back({"lstm", 2, Direction::bidirectional, 0, true});
  all.push_back({"lstm", 1, Direction::forward, 2, true});
  return all;
}

TEST_CASE("gradients of layers over dense sequences equal central differences") {
  std::uint64_t seed = 200;
  for (const LayerCase& each : dense_cases()) {
    INFO("layers of ", each.name, ", ", each.layers, " deep, direction ", static_cast<int>(each.direction), ", seed ", ++seed);
    const Trained made = trained(seed, each, DType::f64);
    Random random(seed);
    DifferenceOptions options;
    options.seed = seed;
    options.at_most = 2;
    for (const DDim& dims : {DDim{4, 3, width}, DDim{1, 1, width}})
      expect_gradients(made.program, {{"x", random_tensor(random, dims, 1, DType::f64)}}, made.names, options);
  }
}

TEST_CASE("backward loops over dense sequences are fused, with the bits of the interpreter, for any number of steps and sequences") {
  std::uint64_t seed = 300;
  for (const LayerCase& each : dense_cases()) {
    INFO("layers of ", each.name, ", ", each.layers, " deep, direction ", static_cast<int>(each.direction), ", seed ", ++seed);
    const Trained made = trained(seed, each, DType::f32);
    Random random(seed);
    const std::int64_t loops = static_cast<std::int64_t>(each.layers) * (each.direction == layers::Direction::bidirectional ? 2 : 1);
    for (const DDim& dims : {DDim{0, 2, width}, DDim{1, 1, width}, DDim{7, 3, width}, DDim{20, 1, width}}) {
      INFO("x ", dims.to_string());
      CHECK(compare(made.program, {{"x", random_tensor(random, dims)}}) == (dims[0] > 0 ? 2 * loops : 0));
    }
  }
}

TEST_CASE("dense sequences have the gradients of ragged ones of equal lengths") {
  const Trained dense = trained(11, {"lstm", 2, layers::Direction::bidirectional, 0, true}, DType::f64);
  const Trained ragged = trained(11, {"lstm", 2, layers::Direction::bidirectional}, DType::f64);
  Random random(11);
  constexpr std::int64_t steps = 5, sequences = 3;
  const Tensor x = random_tensor(random, {steps, sequences, width}, 1, DType::f64);
  Tensor rows(DType::f64, {steps * sequences, width});
  for (std::int64_t t = 0; t < steps; ++t)
    for (std::int64_t n = 0; n < sequences; ++n)
      for (std::int64_t c = 0; c < width; ++c)
        rows.mutable_data<double>()[(n * steps + t) * width + c] = x.data<double>()[(t * sequences + n) * width + c];
  const RunResult one = on_cpu(dense.program, {{"x", x}});
  const RunResult other = on_cpu(ragged.program, {{"x", LoDTensor(rows, LoD::from_lengths({{steps, steps, steps}}))}});
  for (const std::string& name : dense.names) {
    if (name == "x") continue;
    CAPTURE(name);
    const auto a = one["d_" + name].tensor().to_vector<double>(), b = other["d_" + name].tensor().to_vector<double>();
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-10));
  }
}

TEST_CASE("gradients of a batch are the sums of the gradients of its sequences, and rows have those of the sequence alone") {
  const LayerCase each{"lstm", 2, layers::Direction::bidirectional};
  const Trained made = trained(7, each, DType::f64);
  Random random(7);
  const LoD lod = LoD::from_lengths({{3, 0, 5, 1}});
  const Tensor x = random_tensor(random, {lod.rows(), width}, 1, DType::f64);
  const RunResult whole = on_cpu(made.program, {{"x", LoDTensor(x, lod)}});
  std::vector<double> rows;
  std::vector<double> weights(static_cast<std::size_t>(whole["d_lstm_0_input"].tensor().elements()), 0.0);
  std::int64_t begin = 0;
  for (const std::int64_t length : {3, 0, 5, 1}) {
    const LoDTensor one(x.slice(0, begin, begin + length).copy_to(CpuPlace{}), LoD::from_lengths({{length}}));
    const RunResult alone = on_cpu(made.program, {{"x", one}});
    for (const double value : alone["d_x"].tensor().to_vector<double>()) rows.push_back(value);
    const std::vector<double> of_weights = alone["d_lstm_0_input"].tensor().to_vector<double>();
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += of_weights[i];
    begin += length;
  }
  CHECK(whole["d_x"].tensor().to_vector<double>() == rows);
  const std::vector<double> together = whole["d_lstm_0_input"].tensor().to_vector<double>();
  for (std::size_t i = 0; i < weights.size(); ++i) CHECK(together[i] == doctest::Approx(weights[i]).epsilon(1e-12));
}

}  // namespace
