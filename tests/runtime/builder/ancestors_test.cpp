// SPDX-License-Identifier: Apache-2.0 The three ancestors that the design 000 counts up, which a loop over TensorArrays replaces: for each
// the same input and the same answer, as a plain loop of the test computes it by that ancestor's own rules.
//   recurrent_op            equal lengths, one step net for each step, memories linked to the step before
//   dynamic_recurrent_op    sequences sorted by length, the batch shrinks, outputs in the caller's order
//   RecurrentGradientMachine  a recurrent layer group over a nested sequence, whose inner group starts from the outer memory
#include <doctest/doctest.h>

#include <cmath>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/random.h"

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::LoD, millrace::LoDTensor, millrace::Program, millrace::RunResult, millrace::Tensor,
    millrace::VarType;
using namespace millrace::testing;

namespace {

using Floats = std::vector<float>;
constexpr std::int64_t features = 3;
constexpr std::int64_t hidden = 2;

struct Net {
  explicit Net(Random& random) {
    for (float& each : w) each = random.real();
    for (float& each : u) each = random.real();
  }
  /// sigmoid(x·W + h·U), in f64.
  void step(const float* x, double* h) const {
    double next[hidden];
    for (std::int64_t j = 0; j < hidden; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < features; ++k) sum += x[k] * w[static_cast<std::size_t>(k * hidden + j)];
      for (std::int64_t k = 0; k < hidden; ++k) sum += h[k] * u[static_cast<std::size_t>(k * hidden + j)];
      next[j] = 1 / (1 + std::exp(-sum));
    }
    std::copy(next, next + hidden, h);
  }
  Var built(const Var& x, const Var& h) const {
    return sigmoid(matmul(x, constant(Tensor::from(w, {features, hidden}))) + matmul(h, constant(Tensor::from(u, {hidden, hidden}))));
  }
  Floats w = Floats(static_cast<std::size_t>(features * hidden));
  Floats u = Floats(static_cast<std::size_t>(hidden * hidden));
};

Floats random_values(Random& random, std::int64_t count) {
  Floats values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(random.real());
  return values;
}

Program program_of(const std::function<Var()>& building) {
  Program program;
  const Guard guard(program);
  output("y", building());
  return program;
}

void check_close(const RunResult& result, const std::vector<double>& wanted) {
  const Floats found = result["y"].tensor().to_vector<float>();
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(found[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
}

}  // namespace

TEST_CASE("recurrent_op: equal lengths, the same answer from StaticRNN") {
  Random random(1);
  const Net net(random);
  constexpr std::int64_t steps = 5;
  constexpr std::int64_t batch = 3;
  const Floats x = random_values(random, steps * batch * features);
  const Floats boot = random_values(random, batch * hidden);
  std::vector<double> h(boot.begin(), boot.end());
  std::vector<double> wanted;
  for (std::int64_t t = 0; t < steps; ++t)
    for (std::int64_t b = 0; b < batch; ++b) {
      net.step(&x[static_cast<std::size_t>((t * batch + b) * features)], &h[static_cast<std::size_t>(b * hidden)]);
      wanted.insert(wanted.end(), &h[static_cast<std::size_t>(b * hidden)], &h[static_cast<std::size_t>(b * hidden)] + hidden);
    }
  const Program program = program_of([&] {
    const Var all = input("x", VarType(DType::f32, {DDim::unknown, batch, features}));
    StaticRNN rnn;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(all);
      const Var pre = rnn.memory(constant(Tensor::from(boot, {batch, hidden})));
      const Var next = net.built(x_t, pre);
      rnn.update_memory(pre, next);
      rnn.output(next);
    }
    return rnn.outputs()[0];
  });
  check_close(everywhere(program, {{"x", Tensor::from(x, {steps, batch, features})}}, 30), wanted);
}

TEST_CASE("dynamic_recurrent_op: lengths of their own, the same answer from DynamicRNN") {
  Random random(2);
  const Net net(random);
  const LoD lod = LoD::from_lengths({{2, 5, 0, 3, 3}});
  const Floats x = random_values(random, lod.rows() * features);
  const Floats boot = random_values(random, lod.sequences(0) * hidden);
  std::vector<double> wanted;
  for (std::int64_t s = 0; s < lod.sequences(0); ++s) {
    const auto first = boot.begin() + s * hidden;
    std::vector<double> h(first, first + hidden);
    for (std::int64_t row = lod.offsets(0)[static_cast<std::size_t>(s)]; row < lod.offsets(0)[static_cast<std::size_t>(s) + 1]; ++row) {
      net.step(&x[static_cast<std::size_t>(row * features)], h.data());
      wanted.insert(wanted.end(), h.begin(), h.end());
    }
  }
  const Program program = program_of([&] {
    const Var all = input("x", VarType(DType::f32, {DDim::unknown, features}, 1));
    DynamicRNN rnn;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(all);
      const Var pre = rnn.memory(constant(Tensor::from(boot, {lod.sequences(0), hidden})));
      const Var next = net.built(x_t, pre);
      rnn.update_memory(pre, next);
      rnn.output(next);
    }
    return rnn.outputs()[0];
  });
  check_close(everywhere(program, {{"x", LoDTensor(Tensor::from(x, {lod.rows(), features}), lod)}}, 30), wanted);
}

TEST_CASE("RecurrentGradientMachine: a group over sub-sequences inside a group, the same answer from nested DynamicRNNs") {
  Random random(3);
  const Net net(random);
  const LoD lod = LoD::from_lengths({{2, 3, 1}, {3, 1, 2, 0, 4, 2}});
  const Floats x = random_values(random, lod.rows() * features);
  std::vector<double> wanted;
  for (std::int64_t s = 0; s < lod.sequences(0); ++s) {
    double h[hidden] = {0, 0};
    const auto [begin, end] = lod.row_range(0, s, s + 1);
    for (std::int64_t row = begin; row < end; ++row) {
      net.step(&x[static_cast<std::size_t>(row * features)], h);
      wanted.insert(wanted.end(), h, h + hidden);
    }
  }
  const Program program = program_of([&] {
    const Var all = input("x", VarType(DType::f32, {DDim::unknown, features}, 2));
    DynamicRNN outer;
    {
      const auto block = outer.block();
      const Var sentence = outer.step_input(all);
      const Var carried = outer.memory(DType::f32, {hidden});
      DynamicRNN inner;
      Var pre;
      {
        const auto inside = inner.block();
        const Var word = inner.step_input(sentence);
        pre = inner.memory(carried);
        const Var next = net.built(word, pre);
        inner.update_memory(pre, next);
        inner.output(next);
      }
      outer.update_memory(carried, inner.last(pre));
      outer.output(inner.outputs()[0]);
    }
    return outer.outputs()[0];
  });
  const RunResult result = everywhere(program, {{"x", LoDTensor(Tensor::from(x, {lod.rows(), features}), lod)}}, 30);
  CHECK(result["y"].lod() == lod);
  check_close(result, wanted);
}
