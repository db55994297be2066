// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/recurrent.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/sequence_walk.h"
#include "support/step_by_step.h"

using namespace millrace;
using namespace millrace::testing;
using build::Var;
using layers::CellState, layers::CellStep, layers::Sequences, layers::Unrolled;

namespace {

constexpr std::int64_t hidden = 2;

/// The minimal gated unit: h' = z·h + (1 − z)·tanh(x·W), z = sigmoid(x·Wz + h·U).
struct Minimal {
  explicit Minimal(Random& random)
      : w(random_numbers(random, hidden * hidden)),
        wz(random_numbers(random, hidden * hidden)),
        u(random_numbers(random, hidden * hidden)) {}

  // [own cell]
  Unrolled built(const Sequences& x, const Var& first, bool reverse = false) const {
    using namespace build;
    const Var W = parameter("W", matrix(w)), Wz = parameter("Wz", matrix(wz)), U = parameter("U", matrix(u));
    const auto cell = [&](const Var& row, const std::vector<Var>& s) {
      const Var z = sigmoid(matmul(row, Wz) + matmul(s[0], U));
      const Var h = z * s[0] + (Var(1.0) - z) * tanh(matmul(row, W));
      return CellStep{h, {h}};
    };
    return layers::unroll(cell, x, {{hidden, first}}, reverse);
  }
  // [own cell]

  static Tensor matrix(const std::vector<double>& values) { return f32_tensor(values, {hidden, hidden}); }
  std::vector<double> step(const std::vector<double>& x, std::vector<double>& h) const {
    std::vector<double> next;
    for (std::size_t j = 0; j < hidden; ++j) {
      double gate = 0;
      double candidate = 0;
      for (std::size_t k = 0; k < hidden; ++k) {
        gate += x[k] * wz[k * hidden + j] + h[k] * u[k * hidden + j];
        candidate += x[k] * w[k * hidden + j];
      }
      const double z = 1 / (1 + std::exp(-gate));
      next.push_back(z * h[j] + (1 - z) * std::tanh(candidate));
    }
    return h = next;
  }
  std::vector<double> w, wz, u;
};

Program program_of(const Minimal& cell, bool as_dense, bool masked, bool reverse) {
  Program program;
  const build::Guard guard(program);
  const Var first = build::input("first", VarType(DType::f32, {DDim::unknown, hidden}));
  const Sequences over = as_dense ? Sequences(build::input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, hidden})),
                                              masked ? build::input("lengths", VarType(DType::i32, {DDim::unknown})) : Var())
                                  : Sequences(build::input("x", VarType(DType::f32, {DDim::unknown, hidden}, 1)));
  const Unrolled made = cell.built(over, first, reverse);
  build::output("y", made.output);
  build::output("last", made.last[0]);
  return program;
}

Tensor lengths_of(const Batch& x) {
  std::vector<std::int32_t> lengths;
  for (const Rows& rows : x) lengths.push_back(static_cast<std::int32_t>(rows.size()));
  return Tensor::from(lengths, {static_cast<std::int64_t>(lengths.size())});
}

}  // namespace

TEST_CASE("a cell of one's own over ragged rows, and over dense ones with lengths, is each sequence alone") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    const Minimal cell(random);
    LoD::Level lengths;
    for (std::int64_t s = random.between(0, 4); s >= 0; --s) lengths.push_back(random.between(0, 6));
    lengths.push_back(3);
    const Batch x = random_batch(random, lengths, hidden);
    const bool reverse = random.coin();
    std::vector<Rows> states;
    std::vector<double> firsts;
    for (std::size_t s = 0; s < x.size(); ++s) {
      states.push_back({random_numbers(random, hidden)});
      firsts.insert(firsts.end(), states.back()[0].begin(), states.back()[0].end());
    }
    const auto n = static_cast<std::int64_t>(x.size());
    const Tensor first = f32_tensor(firsts, {n, hidden});
    const Batch wanted = walk(x, reverse, states, [&](const std::vector<double>& row, Rows& state) { return cell.step(row, state[0]); });
    std::vector<double> lasts;
    for (const Rows& state : states) lasts.insert(lasts.end(), state[0].begin(), state[0].end());
    const Tensor last = f32_tensor(lasts, {n, hidden});

    const Feeds by_rows{{"x", ragged(x, hidden)}, {"first", first}};
    const RunResult rows = on_cpu(program_of(cell, false, false, reverse), by_rows);
    check_close(rows["y"].tensor(), ragged(wanted, hidden).tensor());
    check_close(rows["last"].tensor(), last);
    const std::int64_t steps = *std::max_element(lengths.begin(), lengths.end()) + random.between(0, 2);
    const Program dense_program = program_of(cell, true, true, reverse);
    const Feeds by_steps{{"x", dense(x, steps, hidden, 9.0)}, {"lengths", lengths_of(x)}, {"first", first}};
    const RunResult found = on_cpu(dense_program, by_steps);
    check_close(found["y"].tensor(), dense(wanted, steps, hidden, 0.0));
    check_close(found["last"].tensor(), last);
    Schedule schedule(seed, policy_of(seed));
    CHECK(bits(on_sim(schedule, dense_program, by_steps)) == bits(found));
  }
}

TEST_CASE("what stands behind a sequence's end is never looked at") {
  Random random(3);
  const Minimal cell(random);
  const Batch x = random_batch(random, {2, 4, 0}, hidden);
  const Tensor first = f32_tensor(random_numbers(random, 3 * hidden), {3, hidden});
  for (const bool reverse : {false, true}) {
    const Program program = program_of(cell, true, true, reverse);
    const auto with = [&](double past) {
      return bits(on_cpu(program, {{"x", dense(x, 5, hidden, past)}, {"lengths", lengths_of(x)}, {"first", first}}));
    };
    CHECK(with(0) == with(std::nan("")));
  }
}

TEST_CASE("lengths that the steps do not have are errors") {
  Random random(4);
  const Minimal cell(random);
  const Program program = program_of(cell, true, true, false);
  const auto fails = [&](const std::vector<std::int32_t>& lengths) -> std::string {
    try {
      on_cpu(program, {{"x", dense(random_batch(random, {2, 2}, hidden), 2, hidden, 0)},
                       {"lengths", Tensor::from(lengths, {static_cast<std::int64_t>(lengths.size())})},
                       {"first", f32_tensor({0, 0, 0, 0}, {2, hidden})}});
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  CHECK(says(fails({1, 3}), {"lengths of 0 to 2", "found 3", "sequence 1"}));
  CHECK(says(fails({-1, 2}), {"lengths of 0 to 2", "found -1"}));
  CHECK(says(fails({2147483647, 2}), {"found 2147483647"}));
  CHECK(says(fails({2}), {"each of 2 sequences", "found 1"}));
}

TEST_CASE("inputs of neither form, lengths beside LoD and a wrong number of states are refused") {
  const auto refusal = [](const VarType& type, bool masked, std::size_t states) {
    return build_refusal([&] {
      const Var x = build::input("x", type);
      const Var lengths = masked ? build::input("lengths", VarType(DType::i64, {2})) : Var();
      layers::unroll([&](const Var& row, const std::vector<Var>&) { return CellStep{row, std::vector<Var>(states, row)}; }, {x, lengths},
                     {{hidden}});
    });
  };
  CHECK(says(refusal(VarType(DType::f32, {3, hidden}), false, 1), {"rows with LoD, or a dense [T, N, C]", "'x'"}));
  CHECK(says(refusal(VarType(DType::f32, {3, hidden}, 1), true, 1), {"expected lengths with a dense", "'x'"}));
  CHECK(says(refusal(VarType(DType::f32, {3, hidden}, 1), false, 2), {"expected 1 states", "found 2"}));
}

TEST_CASE("a cell of one's own streams with the bits of the whole") {
  Random random(5);
  const Minimal cell(random);
  const Program program = program_of(cell, false, false, false);
  const LoDTensor rows = ragged(random_batch(random, {7}, hidden), hidden);
  const Tensor first = f32_tensor(random_numbers(random, hidden), {1, hidden});
  CHECK(StepByStep(make_recurrence(program)).run(rows.tensor(), {first}) ==
        bytes_of(on_cpu(program, {{"x", rows}, {"first", first}})["y"].tensor()));
}
