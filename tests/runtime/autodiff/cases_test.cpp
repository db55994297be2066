// SPDX-License-Identifier: Apache-2.0
// The numbered cases of gradients through arrays and loops.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>

#include "support/program_runs.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Values = std::vector<double>;

Var fed(const std::string& name, const DDim& dims, int levels = 0) { return input(name, VarType(DType::f64, dims, levels)); }
Tensor row(const Values& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}); }
Tensor scalar(double value) { return Tensor::from(Values{value}, DDim{}); }
Tensor column(const Values& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()), 1}); }
Var number(double value) { return constant(scalar(value)); }

/// The result of `build` as `loss`, with its gradients by all inputs (but `dy`) as outputs d_NAME. A gradient of zero is an empty tensor.
RunResult gradients(const std::function<Var()>& build, const Feeds& feeds, const std::string& seed = {}) {
  Program program;
  BackwardOptions options;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var made = build();
    output("loss", made);
    loss = made.id();
  }
  for (const Program::Port& port : program.inputs()) {
    if (port.name == seed)
      options.seed = port.var;
    else if (is_floating(program.var(port.var).type.dtype))
      options.with_respect_to.push_back(port.var);
  }
  for (const Gradient& each : append_backward(program, loss, options)) {
    if (each.gradient == no_var) {
      const Guard guard(program);
      output("d_" + program.var(each.var).name, constant(Tensor::from(Values{}, DDim{0})));
    } else {
      program.add_output("d_" + program.var(each.var).name, each.gradient);
    }
  }
  check(program);
  RunResult result = on_cpu(program, feeds);
  RunOptions interpreted;
  interpreted.backend = Backend::interpreted;
  CHECK(bits(on_cpu(program, feeds, interpreted)) == bits(result));
  CHECK(result.live_step_scopes() == 0);
  return result;
}

Values of(const RunResult& result, const std::string& name) { return result[name].tensor().to_vector<double>(); }

TEST_CASE("case 13: gradients of two reads of a slot add up, and an unread slot has gradient zero") {
  const RunResult found = gradients(
      [] {
        const Var x = fed("x", {2, 2});
        const Var a = fed("a", {2});
        const Var b = fed("b", {2});
        const ArrayVar slots = ArrayVar::unstack(x);
        return sum(slots.read(0) * a) + sum(slots.read(0) * b);
      },
      {{"x", Tensor::from(Values{1, 2, 3, 4}, DDim{2, 2})}, {"a", row({2, 3})}, {"b", row({1, -1})}});
  CHECK(of(found, "d_x") == Values{3, 2, 0, 0});
}

TEST_CASE("case 16: a loop over slots that adds to its state") {
  Values v0;
  Values dy;
  for (int i = 0; i < 15; ++i) v0.push_back(i);
  for (int i = 0; i < 15; ++i) dy.push_back(-i);
  const RunResult found = gradients(
      [] {
        const Var v = fed("v0", {3, 5});
        const Var var = fed("var", {5});
        Var s = Var::of(fed("s0", {5}).id());
        const Var weights = fed("dy", {3, 5});
        const ArrayVar slots = ArrayVar::unstack(v);
        const ArrayVar outputs(constant(3));
        Var step = constant(0);
        WhileLoop loop = while_loop({step, s});
        {
          const auto frame = loop.frame();
          loop.break_if(equal(step, 3));
          const Var each = slots.read(step);
          outputs.write(step, each + var + s);
          s.update(s + each);
          step.update(step + 1);
        }
        const Var y = outputs.stack();
        output("y", y);
        return sum(y * weights);
      },
      {{"v0", Tensor::from(v0, DDim{3, 5})},
       {"var", row({100, 101, 102, 103, 104})},
       {"s0", row({1, 1, 1, 1, 1})},
       {"dy", Tensor::from(dy, DDim{3, 5})}});
  CHECK(of(found, "y") == Values{101, 103, 105, 107, 109, 106, 109, 112, 115, 118, 116, 120, 124, 128, 132});
  CHECK(of(found, "d_v0") == Values{-15, -18, -21, -24, -27, -15, -17, -19, -21, -23, -10, -11, -12, -13, -14});
  CHECK(of(found, "d_var") == Values{-15, -18, -21, -24, -27});
  CHECK(of(found, "d_s0") == Values{-15, -18, -21, -24, -27});
}

/// v ← body(v) while v < 100.
Var after_loop(const Var& start, const std::function<Var(const Var&)>& body) {
  Var v = Var::of(start.id());
  WhileLoop loop = while_loop({v});
  {
    const auto frame = loop.frame();
    loop.break_if(greater_equal(v, number(100)));
    v.update(body(v));
  }
  return v;
}

TEST_CASE("case 18: squaring until a hundred has gradient 1024") {
  const RunResult found = gradients([] { return after_loop(fed("v", {}), [](const Var& v) { return v * v; }); }, {{"v", scalar(2)}});
  CHECK(of(found, "loss") == Values{256});
  CHECK(of(found, "d_v") == Values{1024});
}

TEST_CASE("case 18: a factor from outside the loop has gradient 216") {
  const RunResult found = gradients(
      [] {
        const Var a = fed("a", {});
        return after_loop(fed("v", {}), [&](const Var& v) { return v * a; });
      },
      {{"v", scalar(2)}, {"a", scalar(3)}});
  CHECK(of(found, "d_v") == Values{81});
  CHECK(of(found, "d_a") == Values{216});
}

Var doubled(const Var& start, int times) {
  Var v = Var::of(start.id());
  Var i = constant(0);
  WhileLoop loop = while_loop({i, v});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(i, times));
    v.update(v * number(2));
    i.update(i + 1);
  }
  return v;
}

TEST_CASE("case 18: serial loops, a state that the body never uses, one that it passes through, no iteration") {
  CHECK(of(gradients([] { return doubled(doubled(fed("v", {}), 5), 5); }, {{"v", scalar(1)}}), "d_v") == Values{1024});
  CHECK(of(gradients([] { return doubled(fed("v", {}), 0); }, {{"v", scalar(1)}}), "d_v") == Values{1});
  const auto two_states = [](bool unused) {
    return gradients(
        [unused] {
          Var v = Var::of(fed("v", {}).id());
          Var w = Var::of(fed("w", {}).id());
          Var i = constant(0);
          WhileLoop loop = while_loop({i, v, w});
          {
            const auto frame = loop.frame();
            loop.break_if(equal(i, 3));
            if (unused) v.update(number(7));
            w.update(w * number(2));
            i.update(i + 1);
          }
          return v + w;
        },
        {{"v", scalar(5)}, {"w", scalar(1)}});
  };
  const Values of_unused = of(two_states(true), "d_v");
  CHECK((of_unused.empty() || of_unused == Values{0}));
  CHECK(of(two_states(false), "d_v") == Values{1});
  CHECK(of(two_states(false), "d_w") == Values{8});
}

TEST_CASE("case 18: nested loops double and square") {
  const RunResult found = gradients(
      [] {
        Var v = Var::of(fed("v", {}).id());
        WhileLoop outer = while_loop({v});
        {
          const auto frame = outer.frame();
          outer.break_if(greater_equal(v, number(3000)));
          Var w = Var::of(v.id());
          WhileLoop inner = while_loop({w});
          {
            const auto inside = inner.frame();
            inner.break_if(greater_equal(w, number(20)));
            w.update(w * number(2));
          }
          v.update(w * w);
        }
        return v;
      },
      {{"v", scalar(2)}});
  // 2 → 32 → 1024 → 1048576: (16 v)⁴ has the derivative 4 · 16⁴ · v³.
  CHECK(of(found, "loss") == Values{1048576});
  CHECK(of(found, "d_v") == Values{4.0 * 65536 * 8});
}

TEST_CASE("a value around two loops that the inner loop both begins with and reads has both gradients") {
  const RunResult found = gradients(
      [] {
        const Var a = fed("a", {});
        Var total = number(0);
        Var i = constant(0);
        WhileLoop outer = while_loop({i, total});
        {
          const auto frame = outer.frame();
          outer.break_if(equal(i, constant(3)));
          Var state = Var::of(a.id());
          Var j = constant(0);
          WhileLoop inner = while_loop({j, state});
          {
            const auto inside = inner.frame();
            inner.break_if(equal(j, constant(2)));
            state.update(state * a);
            j.update(j + 1);
          }
          total.update(total + state);
          i.update(i + 1);
        }
        return total;
      },
      {{"a", scalar(2)}});
  CHECK(of(found, "loss") == Values{24});  // 3·a³
  CHECK(of(found, "d_a") == Values{36});
}

TEST_CASE("case 19: a value that is overwritten in the loop has the gradient of what it was") {
  /// x and i + 1 in place of x and i until `last`, from ones.
  const auto overwritten = [](double last, const std::function<Var(Var i, Var x)>& next) {
    return gradients(
        [&] {
          Var i = Var::of(fed("i", {}).id());
          Var x = Var::of(fed("x", {}).id());
          WhileLoop loop = while_loop({i, x});
          {
            const auto frame = loop.frame();
            loop.break_if(equal(i, number(last)));
            x.update(next(i, x));
            i.update(i + number(1));
          }
          return x;
        },
        {{"i", scalar(1)}, {"x", scalar(1)}});
  };
  const RunResult product = overwritten(3, [](Var i, Var x) { return x * i; });
  CHECK(of(product, "loss") == Values{2});
  CHECK(of(product, "d_i") == Values{3});
  CHECK(of(product, "d_x") == Values{2});
  const RunResult square = overwritten(11, [](Var i, Var) { return i * i; });
  CHECK(of(square, "loss") == Values{100});
  CHECK(of(square, "d_i") == Values{20});
  const Values dx = of(square, "d_x");
  CHECK((dx.empty() || dx == Values{0}));
}

TEST_CASE("case 20: h = (h + x) / 2 over the steps of a StaticRNN") {
  const RunResult found = gradients(
      [] {
        const Var x = fed("x", {DDim::unknown, 1, 1});
        const Var h0 = fed("h0", {1, 1});
        StaticRNN rnn;
        {
          const auto block = rnn.block();
          const Var x_t = rnn.step_input(x);
          const Var h = rnn.memory(h0);
          const Var next = (h + x_t) * number(0.5);
          rnn.update_memory(h, next);
          rnn.output(next);
        }
        const Var y = rnn.outputs()[0];
        output("y", y);
        return sum(y);
      },
      {{"x", Tensor::from(Values{1, 2, 3}, DDim{3, 1, 1})}, {"h0", column({4})}});
  CHECK(of(found, "y") == Values{2.5, 2.25, 2.625});
  CHECK(of(found, "d_h0") == Values{.875});
  CHECK(of(found, "d_x") == Values{.875, .75, .5});
}

TEST_CASE("case 21: ragged h += x with boots") {
  for (const bool sorted : {true, false}) {
    const RunResult found = gradients(
        [sorted] {
          const Var x = fed("x", {DDim::unknown, 1}, 1);
          const Var boot = fed("boot", {DDim::unknown, 1});
          DynamicRNN rnn({.sort_by_length = sorted});
          {
            const auto block = rnn.block();
            const Var x_t = rnn.step_input(x);
            const Var h = rnn.memory(boot);
            const Var next = h + x_t;
            rnn.update_memory(h, next);
            rnn.output(next);
          }
          const Var y = rnn.outputs()[0];
          output("y", y);
          return sum(drop_lod(y));
        },
        {{"x", LoDTensor(column({1, 2, 3, 4, 5, 6}), LoD::from_lengths({{3, 1, 2}}))}, {"boot", column({10, 20, 30})}});
    CHECK(of(found, "y") == Values{11, 13, 16, 24, 35, 41});
    CHECK(of(found, "d_x") == Values{3, 2, 1, 1, 2, 1});
    CHECK(of(found, "d_boot") == Values{3, 1, 2});
    CHECK(found["d_x"].lod() == LoD::from_lengths({{3, 1, 2}}));
  }
}

TEST_CASE("case 5: the gradient of a state that shrinks is padded with zeros") {
  const RunResult found = gradients(
      [] {
        const Var x = fed("x", {DDim::unknown, 1}, 1);
        const Var s = fed("s", {DDim::unknown, 1});
        const auto [steps, order] = unpack(x, 0, sort_by_length);
        const Var in_order = call1("reorder", {s, order.var()});
        return sum(shrink(in_order, steps.read(2))) + number(10) * sum(shrink(in_order, steps.read(1)));
      },
      {{"x", LoDTensor(column({1, 2, 3, 4, 5, 6}), LoD::from_lengths({{1, 2, 3}}))}, {"s", column({7, 8, 9})}});
  CHECK(of(found, "d_s") == Values{0, 10, 11});
}

TEST_CASE("case 22: the gradient of a decay over four steps") {
  const auto build = [] {
    const Var x = fed("x", {DDim::unknown, 1}, 1);
    const Var w = fed("w", {1, 1});
    DynamicRNN rnn;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      const Var h = rnn.memory(DType::f64, {1});
      const Var next = matmul(h, w) + x_t;
      rnn.update_memory(h, next);
      rnn.output(next);
    }
    return sum(drop_lod(rnn.outputs()[0]));
  };
  const Feeds feeds{{"x", LoDTensor(column({1, 1, 1, 1}), LoD::from_lengths({{4}}))}, {"w", column({.5})}};
  const RunResult found = gradients(build, feeds);
  CHECK(of(found, "loss") == Values{6.125});
  CHECK(of(found, "d_w") == Values{5.75});
}

TEST_CASE("case 24: a training step has a step scope for each iteration of both loops, and none is alive behind them") {
  Program program;
  VarId next = no_var;
  {
    const Guard guard(program);
    const Var x = fed("x", {DDim::unknown, 1}, 1);
    const Var w = fed("w", {1, 1});
    DynamicRNN rnn;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      const Var h = rnn.memory(DType::f64, {1});
      const Var made = matmul(h, w) + x_t;
      next = made.id();
      rnn.update_memory(h, made);
      rnn.output(made);
    }
    const Var loss = sum(drop_lod(rnn.outputs()[0]));
    output("loss", loss);
    const VarId dw = append_backward(program, loss.id(), {.with_respect_to = {w.id()}}).at(0).gradient;
    program.add_output("d_w", dw);
  }
  const int forward = program.var(next).block;
  const auto run_of = [&](const LoD::Level& lengths, bool keep) {
    RunOptions options;
    options.backend = Backend::interpreted;
    options.keep_step_scopes = keep;
    const LoD lod = LoD::from_lengths({lengths});
    const Feeds feeds{{"x", LoDTensor(column(Values(static_cast<std::size_t>(lod.rows()), 1)), lod)}, {"w", column({.5})}};
    return on_cpu(program, feeds, options);
  };
  const RunResult kept = run_of({4, 3, 2, 1}, true);
  std::map<int, std::int64_t> scopes;
  for (const auto& scope : kept.step_scopes()) ++scopes[scope->block()];
  REQUIRE(scopes.size() == 2);
  for (const auto& [block, count] : scopes) CHECK(count == 4);
  for (std::int64_t iteration = 0; iteration < 4; ++iteration) {
    const Value* state = kept.step_value(forward, iteration, program.var(next).name);
    REQUIRE(state != nullptr);
    CHECK(state->tensor().rows() == 4 - iteration);
  }
  CHECK(kept.live_step_scopes() == 0);
  const RunResult some = run_of(LoD::Level{64, 3}, false), many = run_of(LoD::Level{256, 3}, false);
  CHECK(some.step_scopes().empty());
  CHECK(some.live_step_scopes() == 0);
  CHECK(many.live_step_scopes() == 0);
  CHECK(many.peak_step_scopes() == some.peak_step_scopes());
  CHECK(some.peak_step_scopes() < 64);
}

TEST_CASE("a branch that was taken has gradients, the other has none") {
  for (const double x : {2.0, -3.0}) {
    const RunResult found = gradients(
        [] {
          const Var v = fed("x", {});
          const Var w = fed("w", {});
          return if_else(
              greater(v, number(0)), [&] { return std::vector<Var>{v * v * w}; }, [&] { return std::vector<Var>{v * number(5)}; })[0];
        },
        {{"x", scalar(x)}, {"w", scalar(4)}});
    CHECK(of(found, "d_x") == Values{x > 0 ? 16.0 : 5.0});
    CHECK(of(found, "d_w") == Values{x > 0 ? 4.0 : 0.0});
  }
}

TEST_CASE("nothing flows back through stop_gradient, the op or the option") {
  const RunResult found = gradients(
      [] {
        const Var x = fed("x", {});
        return x * x + call1("stop_gradient", {x}) * x;
      },
      {{"x", scalar(3)}});
  CHECK(of(found, "d_x") == Values{9});
  Program program;
  VarId loss = no_var;
  BackwardOptions options;
  {
    const Guard guard(program);
    const Var x = fed("x", {});
    const Var square = x * x;
    loss = (square * x).id();
    options.with_respect_to = {x.id()};
    options.stop_gradient = {square.id()};
  }
  program.add_output("d_x", append_backward(program, loss, options)[0].gradient);
  CHECK(of(on_cpu(program, {{"x", scalar(3)}}), "d_x") == Values{9});
}

TEST_CASE("a seed stands for the gradient of a loss of several elements, which is refused without one") {
  const auto build = [] {
    const Var x = fed("x", {3});
    fed("seed", {3});
    return x * x;
  };
  const Feeds feeds{{"x", row({1, 2, 3})}, {"seed", row({1, 10, 100})}};
  CHECK(of(gradients(build, feeds, "seed"), "d_x") == Values{2, 40, 600});
  CHECK_THROWS_AS(gradients(build, feeds), ProgramError);
}

TEST_CASE("the second derivative of a loop is that of its power") {
  Program program;
  VarId loss = no_var;
  VarId v = no_var;
  {
    const Guard guard(program);
    const Var start = fed("v", {});
    v = start.id();
    loss = after_loop(start, [](const Var& x) { return x * x; }).id();
  }
  const VarId first = append_backward(program, loss, {.with_respect_to = {v}})[0].gradient;
  const VarId second = append_backward(program, first, {.with_respect_to = {v}})[0].gradient;
  program.add_output("first", first);
  program.add_output("second", second);
  check(program);
  // v⁸ at 2.
  const RunResult found = on_cpu(program, {{"v", scalar(2)}});
  CHECK(of(found, "first") == Values{1024});
  CHECK(of(found, "second") == Values{56.0 * 64});
}

TEST_CASE("an op without a gradient rule is named with its var and its loop") {
  auto registry = std::make_shared<OpRegistry>(*standard_ops());
  OpDef def;
  def.name = "mystery";
  def.inputs = {"X"};
  def.outputs = {"Out"};
  def.infer = [](InferContext& context) { context.result(context.tensor(0)); };
  def.prepare = [](const PrepareContext&) -> OpKernel { return [](OpContext& run) { run.set(0, run.tensor(0)); }; };
  registry->add(def);
  Program program(registry);
  VarId loss = no_var;
  {
    const Guard guard(program);
    loss = after_loop(fed("x", {}), [](const Var& v) { return call1("mystery", {v}, {}, "riddle") * number(2); }).id();
  }
  const std::string before = program.to_string();
  std::string message;
  try {
    append_backward(program, loss, {.with_respect_to = {program.inputs()[0].var}});
  } catch (const UnsupportedError& error) {
    message = error.what();
  }
  CAPTURE(message);
  CHECK(message.find("mystery") != std::string::npos);
  CHECK(message.find("riddle") != std::string::npos);
  CHECK(message.find("loop") != std::string::npos);
  CHECK(program.to_string() == before);
}

}  // namespace
