// SPDX-License-Identifier: Apache-2.0
// The cell of docs/adding_a_cell.md, in full.
#include <doctest/doctest.h>

// [headers]
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/recurrent.h>
// [headers]
#include <cmath>

#include <millrace/runtime/lowering/recurrence.h>
#include <support/built.h>
#include <support/random_tensor.h>
#include <support/straight_line.h>

namespace millrace::testing {
namespace {

// [layer]
/// A minimal gated unit (Zhou et al., 2016, arXiv:1603.09420):
///
///     f  = sigmoid(x·Wf + h·Uf + bf)                  W* [C, H], U* [H, H], b* [H]
///     h' = (1 − f)·h + f·tanh(x·Wh + (f·h)·Uh + bh)
struct MguWeights {
  Tensor wf, uf, bf, wh, uh, bh;
};

/// x: rows with LoD [rows, C], or dense [T, N, C]; gives h of each step and the last h of each sequence [N, H]. The first h is zero.
layers::Unrolled mgu(const layers::Sequences& x, const MguWeights& weights) {
  using namespace build;
  const Var wf = parameter("wf", weights.wf), uf = parameter("uf", weights.uf), bf = parameter("bf", weights.bf);
  const Var wh = parameter("wh", weights.wh), uh = parameter("uh", weights.uh), bh = parameter("bh", weights.bh);
  const layers::Cell cell = [&](const Var& row, const std::vector<Var>& states) {
    const Var& h = states[0];
    const Var f = sigmoid(matmul(row, wf) + matmul(h, uf) + bf);
    const Var made = tanh(matmul(row, wh) + matmul(f * h, uh) + bh);
    const Var next = (1.0 - f) * h + f * made;
    return layers::CellStep{next, {next}};
  };
  return layers::unroll(cell, x, {{weights.uf.dim(0)}});
}
// [layer]

MguWeights random_weights(Random& random, std::int64_t features, std::int64_t hidden) {
  const auto tensor = [&](DDim dims) { return random_tensor(random, dims); };
  return {tensor({features, hidden}), tensor({hidden, hidden}), tensor({hidden}),
          tensor({features, hidden}), tensor({hidden, hidden}), tensor({hidden})};
}

Program tagged(const MguWeights& weights) {
  return built_program([&] {
    const layers::Unrolled made = mgu({build::input("x", VarType(DType::f32, {DDim::unknown, weights.wf.dim(0)}, 1))}, weights);
    build::output("y", made.output);
    build::output("last", made.last[0]);
  });
}

// [reference]
/// One step in f64, as the formula says.
std::vector<double> step(const std::vector<double>& x, const std::vector<double>& h, const MguWeights& weights) {
  const auto sum = [](const std::vector<double>& row, const Tensor& matrix, std::size_t unit) {
    const std::vector<float> values = matrix.to_vector<float>();
    double total = 0;
    for (std::size_t k = 0; k < row.size(); ++k) total += row[k] * values[k * static_cast<std::size_t>(matrix.dim(1)) + unit];
    return total;
  };
  const std::vector<float> bf = weights.bf.to_vector<float>(), bh = weights.bh.to_vector<float>();
  std::vector<double> f(h.size()), gated(h.size()), next(h.size());
  for (std::size_t i = 0; i < h.size(); ++i) {
    f[i] = 1 / (1 + std::exp(-(sum(x, weights.wf, i) + sum(h, weights.uf, i) + bf[i])));
    gated[i] = f[i] * h[i];
  }
  for (std::size_t i = 0; i < h.size(); ++i)
    next[i] = (1 - f[i]) * h[i] + f[i] * std::tanh(sum(x, weights.wh, i) + sum(gated, weights.uh, i) + bh[i]);
  return next;
}
// [reference]

LoDTensor run_mgu(const Program& program, const Tensor& rows, const std::vector<std::int64_t>& lengths, const char* output = "y") {
  return run_fifo(run(program, {{"x", LoDTensor(rows, LoD::from_lengths({lengths}))}}))[output];
}

}  // namespace

// [test]
TEST_CASE("a cell of a page: each step is what the formula says, and the last state stands behind the last step") {
  Random random(1);
  const MguWeights weights = random_weights(random, 3, 5);
  const Tensor rows = random_tensor(random, DDim{7, 3});
  const Program program = tagged(weights);
  const LoDTensor y = run_mgu(program, rows, {2, 0, 5}), last = run_mgu(program, rows, {2, 0, 5}, "last");
  std::int64_t row = 0;
  std::int64_t sequence = 0;
  for (const std::int64_t length : {2, 0, 5}) {
    std::vector<double> h(5, 0.0);
    for (std::int64_t t = 0; t < length; ++t, ++row) {
      const std::vector<float> x = rows.rows(row, row + 1).to_vector<float>();
      h = step({x.begin(), x.end()}, h, weights);
      const std::vector<float> found = y.tensor().rows(row, row + 1).to_vector<float>();
      for (std::size_t i = 0; i < h.size(); ++i) CHECK(found[i] == doctest::Approx(h[i]).epsilon(1e-5));
    }
    const std::vector<float> found = last.tensor().rows(sequence, sequence + 1).to_vector<float>();
    for (std::size_t i = 0; i < h.size(); ++i) CHECK(found[i] == doctest::Approx(h[i]).epsilon(1e-5));
    ++sequence;
  }
}

TEST_CASE("a cell of a page: a sequence has the same bits alone and among others") {
  Random random(2);
  const Program program = tagged(random_weights(random, 3, 5));
  const Tensor rows = random_tensor(random, DDim{9, 3});
  const LoDTensor all = run_mgu(program, rows, {4, 0, 5});
  CHECK(same_bits(run_mgu(program, rows.rows(0, 4), {4}).tensor(), all.tensor().rows(0, 4)));
  CHECK(same_bits(run_mgu(program, rows.rows(4, 9), {5}).tensor(), all.tensor().rows(4, 9)));
}

TEST_CASE("a cell of a page: it can be fed live, with one state") {
  Random random(3);
  const MguWeights weights = random_weights(random, 3, 5);
  const Recurrence recurrence = make_recurrence(
      built_program([&] { build::output("y", mgu({build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1))}, weights).output); }));
  CHECK(recurrence.states.size() == 1);
}
// [test]

}  // namespace millrace::testing
