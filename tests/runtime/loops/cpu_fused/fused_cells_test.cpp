// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/random_lod.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

CellCase spelled_lstm(std::int64_t c, std::int64_t h) {
  return {"lstm of its parts", c, {h, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(1);
            const auto gate = [&] { return matmul(s[0], w({h, h})) + w({h}) + matmul(x, w({c, h})); };
            const Var i = sigmoid(gate());
            const Var f = sigmoid(gate());
            const Var next = f * s[1] + i * tanh(gate());
            const Var y = sigmoid(gate()) * tanh(next);
            return CellStep{y, {y, next}};
          }};
}

CellCase peephole_lstm(std::int64_t c, std::int64_t h) {
  return {"peepholes and coupled gates", c, {h, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(2);
            const Var i = sigmoid(matmul(x, w({c, h})) + matmul(s[0], w({h, h})) + w({h}) * s[1]);
            const Var next = (1.0f - i) * s[1] + i * tanh(matmul(x, w({c, h})) + matmul(s[0], w({h, h})));
            const Var y = sigmoid(matmul(x, w({c, h})) + matmul(s[0], w({h, h})) + w({h}) * next) * tanh(next);
            return CellStep{y, {y, next}};
          }};
}

CellCase norm_lstm(std::int64_t c, std::int64_t h) {
  return {"layer norm and a projection", c, {h / 2, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(3);
            const Var all = layer_norm(matmul(s[0], w({h / 2, 4 * h})) + matmul(x, w({c, 4 * h})), w({4 * h}), w({4 * h}));
            const std::vector<Var> a = split(all, -1, {h, h, h, h});
            const Var next = layer_norm(sigmoid(a[1]) * s[1] + sigmoid(a[0]) * tanh(a[2]), w({h}), w({h}));
            const Var y = matmul(sigmoid(a[3]) * tanh(next), w({h, h / 2}));
            return CellStep{y, {y, next}};
          }};
}

/// Exponential gates with a normaliser and a stabiliser: four states.
CellCase exponential_lstm(std::int64_t c, std::int64_t h) {
  return {"exponential gates", c, {h, h, h, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(4);
            const auto pre = [&] { return matmul(x, w({c, h})) + matmul(s[0], w({h, h})) + w({h}); };
            const Var in = pre();
            const Var keep = pre();
            const Var high = maximum(keep + s[3], in);
            const Var i = exp(in - high);
            const Var f = exp(keep + s[3] - high);
            const Var next = f * s[1] + i * tanh(pre());
            const Var norm = f * s[2] + i;
            const Var y = sigmoid(pre()) * (next / maximum(abs(norm), constant(1.0f)));
            return CellStep{y, {y, next, norm, high}};
          }};
}

CellCase minimal_unit(std::int64_t c, std::int64_t h) {
  return {"minimal gated unit", c, {h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(5);
            const Var f = sigmoid(matmul(x, w({c, h})) + matmul(s[0], w({h, h})));
            const Var y = (1.0f - f) * s[0] + f * tanh(matmul(x, w({c, h})) + matmul(f * s[0], w({h, h})));
            return CellStep{y, {y}};
          }};
}

/// The output comes of two products that no state needs.
CellCase with_head(std::int64_t c, std::int64_t h) {
  return {"a head behind the state", c, {h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(6);
            const Var state = tanh(matmul(x, w({c, h})) + matmul(s[0], w({h, h})));
            return CellStep{softmax(matmul(relu(matmul(state, w({h, 2 * h}))), w({2 * h, 5}))), {state}};
          }};
}

/// Attends over what it carries of three states, and chooses by comparing.
CellCase window_cell(std::int64_t c, std::int64_t h) {
  return {"attention over a window", c, {h, h, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(7);
            const Var query = tanh(matmul(x, w({c, h})));
            std::vector<Var> rows;
            std::vector<Var> scores;
            for (const Var& state : s) {
              rows.push_back(reshape(state, {-1, 1, h}));
              scores.push_back(reduce(state * query, "sum", {-1}, true));
            }
            const Var weights = softmax(concat(scores, -1));
            const Var past = reduce(transpose(concat(rows, 1) * reshape(weights, {-1, 3, 1}), {0, 2, 1}), "sum", {2});
            const Var mixed = past + slice(weights, -1, 0, 1) * s[0] - slice(weights, -1, 2, 3) * s[2];
            const Var y = where(greater(mixed, query), mixed * 0.5f, query - mixed);
            return CellStep{y, {y, s[0], s[1]}};
          }};
}

/// Functions of the C library, and elements taken from anywhere, some of them twice.
CellCase scattered_cell(std::int64_t c, std::int64_t h) {
  return {"powers, remainders and places anywhere", c, {h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(8);
            std::vector<std::int64_t> places;
            for (std::int64_t i = 0; i < h; ++i) places.push_back(i % 3 == 0 ? -1 : i * i % h);
            const Var mixed = call1("gather", {s[0], constant(Tensor::from(places, DDim{h}))}, {{"axis", std::int64_t{1}}});
            const Var grown =
                call1("pow", {abs(mixed) + 0.5f, w({h})}) - reduce(call1("pow", {x, constant(3.0f)}), "mean", {-1}, true) * 0.1f;
            const Var rest = call1("mod", {grown, w({1})}) + call1("mod", {mixed, constant(0.3f)}, {{"fmod", true}});
            const Var y = tanh(call1("prelu", {matmul(rest, w({h, h})), w({h})}));
            return CellStep{y, {y}};
          }};
}

/// A state that is a matrix for each of two heads, by products of matrices: a memory that forgets what it is about to write anew.
CellCase matrix_state(std::int64_t c, std::int64_t h) {
  return {"a matrix for a state", c, {2 * h * 3, h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(9);
            const auto heads = [&](std::int64_t width, std::int64_t rows, std::int64_t columns) {
              return reshape(matmul(x, w({c, 2 * width})), {-1, 2, rows, columns});
            };
            const Var before = reshape(s[0], {-1, 2, h, 3});
            const Var key = softmax(heads(h, 1, h)), value = tanh(heads(3, 1, 3));
            const Var change = value - matmul(key, before);
            const Var after = before * 0.9f + matmul(transpose(key, {0, 1, 3, 2}), change) * 0.5f;
            const Var seen = matmul(transpose(after, {0, 1, 3, 2}), heads(h, h, 1));                  // [.., 2, 3, 1]
            const Var mixed = reshape(matmul(reshape(seen, {-1, 2, 1, 3}), w({2, 3, 5})), {-1, 10});  // a matrix of its own for each head
            const Var y = tanh(matmul(mixed, w({10, h})) + reduce(reshape(after, {-1, 6, h}), "sum", {1}) * 0.1f);
            return CellStep{y, {reshape(after, {-1, 2 * h * 3}), where(cast(maximum(y, constant(0.0f)), DType::boolean), y, s[1])}};
          }};
}

/// Rows that are made for one place of a wider row, between numbers.
CellCase padded_cell(std::int64_t c, std::int64_t h) {
  return {"rows between numbers", c, {h}, [=](const Var& x, const std::vector<Var>& s) {
            Weights w(10);
            const auto padded = [](const Var& made, std::int64_t before, std::int64_t behind) {
              return call1("pad", {made}, {{"pads", std::vector<std::int64_t>{0, before, 0, behind}}, {"value", 0.5}});
            };
            const Var z = matmul(x, w({c, 2 * h})) + matmul(s[0], w({h, 2 * h}));
            const Var left = padded(tanh(slice(z, -1, 0, h)), 0, h), right = padded(sigmoid(slice(z, -1, h, 2 * h)), h - 1, 1);
            const Var wide = padded(tanh(z), 1, 2);
            const Var y = tanh(matmul(left + right, w({2 * h, h})) + matmul(wide, w({2 * h + 3, h})));
            return CellStep{y, {y}};
          }};
}

std::vector<CellCase> cells(std::int64_t c, std::int64_t h) {
  return {spelled_lstm(c, h), peephole_lstm(c, h), norm_lstm(c, h),      exponential_lstm(c, h), minimal_unit(c, h),
          with_head(c, h),    window_cell(c, h),   scattered_cell(c, h), matrix_state(c, h),     padded_cell(c, h)};
}

TEST_CASE("cells of many kinds run in one piece and give the bits of their iterations one by one, on ragged batches with empty sequences") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t c = random.between(1, 9);
    const std::int64_t h = 2 * random.between(1, 20);
    for (const CellCase& each : cells(c, h)) {
      INFO("cell: ", each.name);
      const bool boots = random.coin();
      const LoD lod = random_lod(random, 1, 12);
      const Feeds feeds = feeds_for(random, each, lod, boots);
      const std::int64_t fused = compare(over_rows(each, boots, random.coin()), feeds);
      CHECK(fused == (lod.rows() > 0 ? 1 : 0));
    }
  }
}

TEST_CASE("cells drawn at random give the bits of their iterations one by one") {
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    Random random(seed * 7919);
    const CellCase each = random_cell(random, seed);
    const bool boots = random.coin();
    const LoD lod = random_lod(random, 1, 9);
    const std::int64_t fused = compare(over_rows(each, boots, random.coin()), feeds_for(random, each, lod, boots));
    CHECK(fused == (lod.rows() > 0 ? 1 : 0));
  }
}

TEST_CASE("a batch of more sequences than a block holds gives each the bits that it has alone") {
  Random random(11);
  const CellCase each = spelled_lstm(5, 24);
  const Program program = over_rows(each, false, false);
  LoD::Level lengths;
  for (int i = 0; i < 150; ++i) lengths.push_back(random.between(0, 9));
  const LoD lod = LoD::from_lengths({lengths});
  const LoDTensor x(random_tensor(random, {lod.rows(), 5}), lod);
  CHECK(compare(program, {{"x", x}}) == 1);
  const RunResult whole = on_cpu(program, {{"x", x}});
  const std::vector<LoDTensor> apart = whole["y"].peel();
  const std::vector<LoDTensor> alone = x.peel();
  for (std::size_t i = 0; i < alone.size(); i += 7) {
    if (alone[i].rows() == 0) continue;
    const RunResult one = on_cpu(program, {{"x", LoDTensor(alone[i].tensor(), LoD::from_lengths({{alone[i].rows()}}))}});
    CHECK(one["y"].tensor().to_vector<float>() == apart[i].tensor().to_vector<float>());
  }
}

TEST_CASE("gates cut from one product have the gradients of their iterations one by one") {
  Random random(12);
  const Tensor w = random_tensor(random, {3, 8}), u = random_tensor(random, {4, 8});
  const CellCase each{"two gates", 3, {4}, [&](const Var& x, const std::vector<Var>& s) {
                        const Var z = matmul(x, parameter("w", w)) + matmul(s[0], parameter("u", u));
                        const Var keep = sigmoid(slice(z, -1, 0, 4));
                        const Var y = keep * s[0] + (1.0f - keep) * tanh(slice(z, -1, 4, 8));
                        return CellStep{y, {y}};
                      }};
  Program program = over_rows(each, false, false);
  {
    const Guard guard(program);
    const Var y = Var::of(program.outputs()[0].var);
    for (const Gradient& made : append_backward(program, sum(drop_lod(y * y)).id()))
      program.add_output("d " + program.var(made.var).name, made.gradient);
  }
  const LoD lod = LoD::from_lengths({{3, 0, 6}});
  CHECK(compare(program, {{"x", LoDTensor(random_tensor(random, {9, 3}), lod)}}) == 2);
}

TEST_CASE("double precision fuses as single does") {
  Random random(5);
  CellCase each{"tanh", 3, {6}, [](const Var& x, const std::vector<Var>& s) {
                  Weights w(9, DType::f64);
                  const Var y = tanh(matmul(x, w({3, 6})) + matmul(s[0], w({6, 6})));
                  return CellStep{y, {y}};
                }};
  const LoD lod = LoD::from_lengths({{4, 0, 2}});
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f64, {DDim::unknown, 3}, 1));
    const Var boot = input("boot0", VarType(DType::f64, {DDim::unknown, 6}));
    output("y", layers::unroll(each.cell, {x}, {{6, boot}}).output);
  }
  CHECK(compare(program, feeds_for(random, each, lod, true, DType::f64)) == 1);
}

}  // namespace
