// SPDX-License-Identifier: Apache-2.0
// The op of docs/adding_an_op.md, in full.
#include <doctest/doctest.h>

// [headers]
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/math.h>
#include <millrace/kernels/where.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/vectorize.h>
// [headers]
#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <support/built.h>
#include <support/random_tensor.h>
#include <support/straight_line.h>

namespace millrace::testing {
namespace {

// [inference]
/// hard_shrink: x where |x| > lambda, else 0. Element by element: dtype, extents and LoD of the input.
void infer_hard_shrink(InferContext& context) {
  const VarType& x = context.tensor(0);
  if (x.dtype != DType::f32) throw ProgramError("expected f32, found " + context.describe(0));
  const double lambda = context.attributes().get_or("lambda", 0.5);
  if (!(lambda >= 0)) throw ProgramError("expected lambda >= 0, found " + std::to_string(lambda));
  context.result(x);
}
// [inference]

// [launch]
OpKernel prepare_hard_shrink(const PrepareContext& context) {
  const Tensor lambda = Tensor::scalar(static_cast<float>(context.attributes().get_or("lambda", 0.5)));
  const Tensor zero = Tensor::scalar(0.0f);
  return [lambda = context.placed(lambda), zero = context.placed(zero)](OpContext& run) {
    const Tensor& x = run.tensor(0);
    const Tensor beyond = greater(abs(x, run.stream()), lambda, run.stream());
    run.set(0, where(beyond, x, zero, run.stream()));
  };
}
// [launch]

// [rows]
/// The same for rows that lie in memory, as a fused loop has them.
RowFunction hard_shrink_of_rows(const PrepareContext& context, const RowForm& form) {
  const auto lambda = static_cast<float>(context.attributes().get_or("lambda", 0.5));
  const std::int64_t width = form.inputs[0].elements();
  return [=](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* x = inputs[0].row<float>(i);
      float* y = outputs[0].row<float>(i);
      for (std::int64_t j = 0; j < width; ++j) y[j] = std::abs(x[j]) > lambda ? x[j] : 0.0f;
    }
  };
}
// [rows]

// [gradient]
/// The gradient g of the result goes through where |x| > lambda, and is 0 elsewhere.
void hard_shrink_gradient(GradientContext& context) {
  const auto constant = [&](double value) {
    return context.append1("constant", {}, {{"value", Tensor::scalar(static_cast<float>(value))}});
  };
  const double lambda = context.op().attributes.get_or("lambda", 0.5);
  const VarId beyond = context.append1("greater", {context.append1("abs", {context.input(0)}), constant(lambda)});
  context.set(0, context.append1("where", {beyond, context.gradient(0), constant(0)}));
}
// [gradient]

// [definition]
OpDef hard_shrink() {
  OpDef def;
  def.name = "my.hard_shrink";
  def.inputs = {"X"};
  def.outputs = {"Out"};
  def.attributes = {"lambda"};
  def.infer = infer_hard_shrink;
  def.prepare = prepare_hard_shrink;
  def.prepare_rows = hard_shrink_of_rows;
  def.gradient = hard_shrink_gradient;
  // A row of the output needs that row of the input alone.
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) { return std::vector<int>{axes.at(0)}; };
  // With one more axis in front it is the same op.
  def.vectorize = [](Vectorizer& v, const Op& op) { v.bind_all(op.outputs, v.emit(op.type, {v.get(op.inputs[0])}, op.attributes), true); };
  return def;
}

std::shared_ptr<const OpRegistry> with_hard_shrink() {
  auto ops = std::make_shared<OpRegistry>(*standard_ops());
  ops->add(hard_shrink());
  return ops;
}
// [definition]

// [use]
/// h ← tanh(hard_shrink(h·U) + x) over ragged sequences.
Program shrinking(const Tensor& u) {
  Program program(with_hard_shrink());
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, u.dim(0)}, 1));
  const build::Var U = build::parameter("U", u);
  build::DynamicRNN rnn;
  {
    const auto block = rnn.block();
    const build::Var row = rnn.step_input(x);
    const build::Var h = rnn.memory(DType::f32, {u.dim(0)});
    const build::Var next = tanh(build::call1("my.hard_shrink", {matmul(h, U)}, {{"lambda", 0.25}}) + row);
    rnn.update_memory(h, next);
    rnn.output(next);
  }
  build::output("y", rnn.outputs()[0]);
  return program;
}
// [use]

LoDTensor run_shrinking(const Program& program, const Tensor& rows, const std::vector<std::int64_t>& lengths) {
  return run_fifo(run(program, {{"x", LoDTensor(rows, LoD::from_lengths({lengths}))}}))["y"];
}

}  // namespace

// [test]
TEST_CASE("an op of a page: hard_shrink keeps what lies beyond lambda") {
  Program program(with_hard_shrink());
  {
    const build::Guard guard(program);
    build::output("y", build::call1("my.hard_shrink", {build::input("x", VarType(DType::f32, {DDim::unknown}))}));
  }
  const RunResult result = run_fifo(run(program, {{"x", Tensor::from<float>({-1, -0.5f, 0, 0.25f, 0.75f})}}));
  CHECK(result["y"].tensor().to_vector<float>() == std::vector<float>{-1, 0, 0, 0, 0.75f});
}

TEST_CASE("an op of a page: a sequence has the same bits alone and among others") {
  Random random(1);
  const Program program = shrinking(random_tensor(random, DDim{4, 4}));
  const Tensor rows = random_tensor(random, DDim{9, 4});
  const LoDTensor all = run_shrinking(program, rows, {3, 0, 6});
  CHECK(same_bits(run_shrinking(program, rows.rows(0, 3), {3}).tensor(), all.tensor().rows(0, 3)));
  CHECK(same_bits(run_shrinking(program, rows.rows(3, 9), {6}).tensor(), all.tensor().rows(3, 9)));
}

TEST_CASE("an op of a page: a loop with it is fused, and has the bits of its iterations one by one") {
  Random random(3);
  const Program program = shrinking(random_tensor(random, DDim{4, 4}));
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, DDim{9, 4}), LoD::from_lengths({{3, 0, 6}}))}};
  RunOptions interpreted;
  interpreted.backend = Backend::interpreted;
  const RunResult fused = run_fifo(run(program, feeds));
  CHECK(fused.fused_loops == 1);
  CHECK(same_bits(fused["y"].tensor(), run_fifo(run(program, feeds, interpreted))["y"].tensor()));
}

TEST_CASE("an op of a page: the gradient goes through beyond lambda, and is 0 elsewhere") {
  Program program(with_hard_shrink());
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown}));
    const build::Var loss = build::sum(build::call1("my.hard_shrink", {x}) * 3.0f);
    program.add_output("dx", append_backward(program, loss.id(), {.with_respect_to = {x.id()}})[0].gradient);
  }
  const RunResult result = run_fifo(run(program, {{"x", Tensor::from<float>({-1, -0.5f, 0, 0.25f, 0.75f})}}));
  CHECK(result["dx"].tensor().to_vector<float>() == std::vector<float>{3, 0, 0, 0, 3});
}

TEST_CASE("an op of a page: the backward of a loop with it is fused, and has the bits of its iterations one by one") {
  Random random(4);
  Program program = shrinking(random_tensor(random, DDim{4, 4}));
  {
    const build::Guard guard(program);
    const build::Var y = build::Var::of(program.outputs()[0].var);
    const build::Var loss = build::sum(build::drop_lod(y * y));
    program.add_output("dU", append_backward(program, loss.id(), {})[0].gradient);
  }
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, DDim{9, 4}), LoD::from_lengths({{3, 0, 6}}))}};
  RunOptions interpreted;
  interpreted.backend = Backend::interpreted;
  const RunResult fused = run_fifo(run(program, feeds));
  CHECK(fused.fused_loops == 2);
  CHECK(same_bits(fused["dU"].tensor(), run_fifo(run(program, feeds, interpreted))["dU"].tensor()));
}

TEST_CASE("an op of a page: a loop with it can be fed live") {
  Random random(2);
  const Recurrence recurrence = make_recurrence(shrinking(random_tensor(random, DDim{4, 4})));
  CHECK(recurrence.states.size() == 1);
  CHECK(recurrence.outputs.size() == 1);
}

TEST_CASE("an op of a page: what does not fit is refused while the program is built") {
  const auto building = [](DType dtype, double lambda) {
    Program program(with_hard_shrink());
    const build::Guard guard(program);
    build::call1("my.hard_shrink", {build::input("x", VarType(dtype, {2}))}, {{"lambda", lambda}});
  };
  CHECK_THROWS_WITH_AS(building(DType::i64, 1), doctest::Contains("expected f32, found"), ProgramError);
  CHECK_THROWS_WITH_AS(building(DType::f32, -1), doctest::Contains("expected lambda >= 0"), ProgramError);
}
// [test]

}  // namespace millrace::testing
