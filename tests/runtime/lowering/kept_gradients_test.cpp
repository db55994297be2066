// SPDX-License-Identifier: Apache-2.0
// Kept values are enough for training: a loop that goes through the iterations of another one backwards.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/lowering/keep_values.h>
#include <millrace/runtime/program/check.h>

#include "runtime/loops/cpu_fused/fused_cells.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// An LSTM over ragged rows in `dtype`, and its weights.
struct SmallLstm {
  static constexpr std::int64_t c = 3, h = 4;
  Tensor w, r, b;

  SmallLstm(Random& random, DType dtype)
      : w(random_tensor(random, {c, 4 * h}, 1, dtype)),
        r(random_tensor(random, {h, 4 * h}, 1, dtype)),
        b(random_tensor(random, {4 * h}, 1, dtype)) {}

  Program forward() const {
    Program program;
    const Guard guard(program);
    const Var x = input("x", VarType(b.dtype(), {DDim::unknown, c}, 1));
    const Var h0 = input("h0", VarType(b.dtype(), {DDim::unknown, h}));
    const Var c0 = input("c0", VarType(b.dtype(), {DDim::unknown, h}));
    output("y", layers::lstm({x}, {{w, r, b, {}, {}}}, {}, {h0}, {c0}).y);
    return program;
  }
};

/// The forward loop keeps what the chain rule reads; a second loop goes through the iterations from each sequence's last row to its first. The
/// gradients of weights are one product each over the rows of all iterations.
Program with_gradients(const SmallLstm& layer) {
  Program program = layer.forward();
  const int body = bodies(program)[0];
  std::string h_before;
  std::string c_before;
  for (const Op& op : program.block(body).ops) {
    if (op.type != "lstm_cell") continue;
    h_before = program.var(op.inputs[1]).name;
    c_before = program.var(op.inputs[2]).name;
  }
  const std::vector<KeptValue> kept = keep_values(program, body, {"h.i", "h.f", "h.g", "h.o", "h.a", h_before, c_before});
  const Guard guard(program);
  const auto order =
      std::find_if(program.block(0).ops.begin(), program.block(0).ops.end(), [](const Op& op) { return op.type == "unpack"; });
  const Order of_rows(Var::of(order->outputs[1]));
  const Var x = Var::of(program.inputs()[0].var);
  const Var dy = input("dy", VarType(layer.b.dtype(), {DDim::unknown, SmallLstm::h}, 1));
  std::vector<Var> rows;
  for (const KeptValue& value : kept) rows.push_back(pack(ArrayVar::of(Var::of(value.array)), 0, of_rows));
  const Var r = transpose(parameter("R", layer.r), {1, 0});
  DynamicRNN back({.reverse = true});
  Var dh_before;
  Var dc_before;
  {
    const auto block = back.block();
    const Var dy_t = back.step_input(dy);
    std::vector<Var> v;
    for (const Var& row : rows) v.push_back(back.step_input(row));
    const Var &i = v[0], &f = v[1], &g = v[2], &o = v[3], &a = v[4], &before = v[6];
    dh_before = back.memory(layer.b.dtype(), {SmallLstm::h});
    dc_before = back.memory(layer.b.dtype(), {SmallLstm::h});
    const Var dh = dy_t + dh_before;
    const Var dc = dc_before + dh * o * (1.0 - a * a);
    const Var sums = concat({dc * g * i * (1.0 - i), dc * before * f * (1.0 - f), dc * i * (1.0 - g * g), dh * a * o * (1.0 - o)}, 1);
    back.update_memory(dh_before, matmul(sums, r));
    back.update_memory(dc_before, dc * f);
    back.output(sums);
  }
  const Var sums = drop_lod(back.outputs()[0]);
  output("dx", matmul(sums, transpose(parameter("W", layer.w), {1, 0})));
  output("dW", matmul(transpose(drop_lod(x), {1, 0}), sums));
  output("dR", matmul(transpose(drop_lod(rows[5]), {1, 0}), sums));
  output("db", reduce(sums, "sum", {0}));
  output("dh0", back.last(dh_before));
  output("dc0", back.last(dc_before));
  check(program);
  return program;
}

/// Central differences of Σ dy·y by the elements of `of`, in double precision.
template <class F>
void expect_gradient(const char* name, const Tensor& of, const Tensor& gradient, const F& loss) {
  INFO(name);
  REQUIRE(gradient.elements() == of.elements());
  const std::vector<double> values = of.to_vector<double>();
  const std::vector<double> found = gradient.to_vector<double>();
  constexpr double step = 1e-5;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = [&](double moved) {
      std::vector<double> other = values;
      other[i] += moved;
      return loss(Tensor::from(other, of.dims()));
    };
    const double wanted = (at(step) - at(-step)) / (2 * step);
    CHECK(found[i] == doctest::Approx(wanted).epsilon(1e-6).scale(1e-2));
  }
}

TEST_CASE("a reversed loop over the kept values gives the gradients of an LSTM, fused as the forward loop is") {
  Random random(31);
  const LoD lod = LoD::from_lengths({{3, 0, 5, 1}});
  const auto feeds_of = [&](DType dtype) {
    return Feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), SmallLstm::c}, 1, dtype), lod)},
                 {"h0", random_tensor(random, {4, SmallLstm::h}, 1, dtype)},
                 {"c0", random_tensor(random, {4, SmallLstm::h}, 1, dtype)},
                 {"dy", LoDTensor(random_tensor(random, {lod.rows(), SmallLstm::h}, 1, dtype), lod)}};
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Program program = with_gradients(SmallLstm(random, dtype));
    CHECK(compare(program, feeds_of(dtype)) == 2);
  }
  const SmallLstm layer(random, DType::f64);
  const Feeds feeds = feeds_of(DType::f64);
  const RunResult found = on_cpu(with_gradients(layer), feeds);
  const std::vector<double> dy = feeds.at("dy").tensor().tensor().to_vector<double>();
  const auto loss = [&](const SmallLstm& of, const char* name, const Tensor& value) {
    Feeds fed = feeds;
    fed.erase("dy");
    if (name != nullptr) fed.at(name) = std::string(name) == "x" ? Value(LoDTensor(value, lod)) : Value(value);
    const std::vector<double> y = on_cpu(of.forward(), fed)["y"].tensor().to_vector<double>();
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
    return sum;
  };
  for (const char* name : {"x", "h0", "c0"})
    expect_gradient(name, feeds.at(name).tensor().tensor(), found[std::string("d") + name].tensor(),
                    [&](const Tensor& value) { return loss(layer, name, value); });
  const auto of_weights = [&](const char* name, Tensor SmallLstm::* part, const char* gradient) {
    expect_gradient(name, layer.*part, found[gradient].tensor(), [&](const Tensor& value) {
      SmallLstm moved = layer;
      moved.*part = value;
      return loss(moved, nullptr, {});
    });
  };
  of_weights("W", &SmallLstm::w, "dW");
  of_weights("R", &SmallLstm::r, "dR");
  of_weights("b", &SmallLstm::b, "db");
}

}  // namespace
