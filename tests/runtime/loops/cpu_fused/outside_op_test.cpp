// SPDX-License-Identifier: Apache-2.0
// Ops that bring their own arithmetic on rows (OpDef::prepare_rows).
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/kernels/elementwise.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/random_lod.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// sum = (X + Y) · Scale, rest = X − Y, or X without Y.
void infer_pair(InferContext& context) {
  context.result(context.tensor(0));
  context.result(context.tensor(0));
}

OpKernel prepare_pair(const PrepareContext& context) {
  return [has_y = context.op().inputs[1] != no_var](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const Tensor sum = has_y ? add(x, run.tensor(1), run.stream()) : x;
    run.set(0, mul(sum, run.tensor(2), run.stream()));
    run.set(1, has_y ? sub(x, run.tensor(1), run.stream()) : x);
  };
}

template <class T>
RowFunction pair_of_rows(const PrepareContext& context, const RowForm& form) {
  const auto scale = context.constant(2)->to_vector<T>();
  const auto width = static_cast<std::size_t>(form.inputs[0].elements());
  return [scale, width](std::span<const RowView> in, std::span<const RowView> out, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* x = in[0].row<T>(row);
      const T* y = in.size() > 1 ? in[1].row<T>(row) : nullptr;
      for (std::size_t i = 0; i < width; ++i) {
        out[0].row<T>(row)[i] = (y == nullptr ? x[i] : x[i] + y[i]) * scale[i % scale.size()];
        out[1].row<T>(row)[i] = y == nullptr ? x[i] : x[i] - y[i];
      }
    }
  };
}

OpDef pair_op() {
  OpDef def;
  def.name = "test.pair";
  def.inputs = {"X", "Y?", "Scale"};
  def.outputs = {"Sum", "Rest"};
  def.infer = infer_pair;
  def.prepare = prepare_pair;
  def.prepare_rows = [](const PrepareContext& context, const RowForm& form) {
    return form.dtype == DType::f64 ? pair_of_rows<double>(context, form) : pair_of_rows<float>(context, form);
  };
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) { return std::vector<int>{axes.at(0), axes.at(0)}; };
  return def;
}

/// As many inputs as are given; the result is the first.
OpDef many_op() {
  OpDef def;
  def.name = "test.many";
  def.inputs = {"Xs..."};
  def.outputs = {"Out"};
  def.infer = [](InferContext& context) { context.result(context.tensor(0)); };
  def.prepare = [](const PrepareContext&) -> OpKernel { return [](OpContext& run) { run.set(0, run.tensor(0)); }; };
  def.prepare_rows = [](const PrepareContext&, const RowForm& form) -> RowFunction {
    if (form.inputs[0].elements() == 1) throw UnsupportedError("test.many: a row of one element");
    return [width = form.inputs[0].elements()](std::span<const RowView> in, std::span<const RowView> out, std::int64_t rows) {
      for (std::int64_t row = 0; row < rows; ++row) std::copy_n(in[0].row<float>(row), width, out[0].row<float>(row));
    };
  };
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) { return std::vector<int>{axes.at(0)}; };
  return def;
}

std::shared_ptr<const OpRegistry> outside_ops() {
  auto ops = std::make_shared<OpRegistry>(*standard_ops());
  ops->add(pair_op());
  ops->add(many_op());
  return ops;
}

/// h ← cell(x, h) over ragged rows of `c` features.
template <class Cell>
Program loop_of(std::int64_t c, std::int64_t h, DType dtype, Cell cell) {
  Program program(outside_ops());
  const Guard guard(program);
  const Var x = input("x", VarType(dtype, {DDim::unknown, c}, 1));
  DynamicRNN rnn;
  {
    const auto block = rnn.block();
    const Var row = rnn.step_input(x);
    const Var state = rnn.memory(dtype, {h});
    const Var next = cell(row, state);
    rnn.update_memory(state, next);
    rnn.output(next);
  }
  output("y", rnn.outputs()[0]);
  return program;
}

TEST_CASE("an op from outside with optional inputs, constants and two outputs is part of a fused loop") {
  for (const std::uint64_t seed : seeds(8)) {
    INFO("seed ", seed);
    Random random(seed);
    const DType dtype = random.coin() ? DType::f32 : DType::f64;
    const std::int64_t c = random.between(1, 9);
    const std::int64_t h = 2 * random.between(1, 20);
    const Program program = loop_of(c, h, dtype, [&](const Var& x, const Var& state) {
      Weights w(seed, dtype);
      const Var both = matmul(state, w({h, 2 * h})) + matmul(x, w({c, 2 * h}));
      const std::vector<Var> parts = split(both, -1, {h, h});  // views whose rows lie apart
      const std::vector<Var> pair = call("test.pair", {parts[0], parts[1], w({h})});
      const std::vector<Var> alone = call("test.pair", {pair[1], Var(), w({1})});
      return tanh(pair[0] + alone[0]);
    });
    const LoD lod = random_lod(random, 1, 70);
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), c}, 1, dtype), lod)}};
    CHECK(compare(program, feeds) == (lod.rows() > 0 ? 1 : 0));
  }
}

TEST_CASE("an op from outside that its rows function refuses, or that has too many inputs, leaves the loop interpreted") {
  Random random(1);
  for (const auto& each : {std::pair<std::int64_t, int>{1, 1}, {4, 7}}) {
    const std::int64_t h = each.first;
    const int inputs = each.second;
    const Program program = loop_of(3, h, DType::f32, [&](const Var& x, const Var& state) {
      Weights w(7);
      const Var next = tanh(matmul(state, w({h, h})) + matmul(x, w({3, h})));
      return call1("test.many", std::vector<Var>(static_cast<std::size_t>(inputs), next));
    });
    const LoD lod = LoD::from_lengths({{2, 0, 3}});
    CHECK(compare(program, {{"x", LoDTensor(random_tensor(random, {5, 3}), lod)}}) == 0);
  }
}

}  // namespace
