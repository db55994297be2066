// SPDX-License-Identifier: Apache-2.0
// Gradients of gradients of loops.
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/builder/static_rnn.h>

#include "support/central_difference.h"
#include "support/random_tensor.h"
#include "support/with_gradients.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

constexpr std::int64_t width = 2;

struct Inputs {
  Var x, w, u, b;
};

/// h' = tanh(x·W + h·U + b) ∘ sigmoid(x·W), over rows or dense.
template <class Rnn>
Var recurrence(Rnn& rnn, const Inputs& in) {
  {
    const auto block = rnn.block();
    const Var x = rnn.step_input(in.x);
    const Var h = rnn.memory(DType::f64, {width});
    const Var a = matmul(x, in.w);
    const Var next = tanh(a + matmul(h, in.u) + in.b) * sigmoid(a);
    rnn.update_memory(h, next);
    rnn.output(next);
  }
  return rnn.outputs()[0];
}

Var ragged(const Inputs& in) {
  DynamicRNN rnn;
  return drop_lod(recurrence(rnn, in));
}
Var dense(const Inputs& in) {
  StaticRNN rnn;
  return recurrence(rnn, in);
}
/// A loop that carries h and reads slots.
Var carried(const Inputs& in) {
  const ArrayVar steps = ArrayVar::unstack(in.x);
  const Var n = steps.size();
  const ArrayVar shown = ArrayVar::typed(n, VarType(DType::f64, {DDim::unknown, width}));
  Var i = constant(0);
  Var h = matmul(steps.read(constant(0)), in.w);
  WhileLoop loop = while_loop({i, h});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(i, n));
    const Var next = tanh(matmul(steps.read(i), in.w) + matmul(h, in.u) + in.b);
    h.update(next);
    shown.write(i, next);
    i.update(i + 1);
  }
  return shown.stack();
}

/// Outputs `loss` = the squares of the gradients of Σ y³ by x and all weights, added up, and its own gradients d_NAME.
Program twice(const std::function<Var(const Inputs&)>& make, const VarType& type, const MemoryPolicy& memory = {}) {
  Program program;
  std::vector<VarId> sources;
  VarId first = no_var;
  {
    const Guard guard(program);
    const Inputs in{input("x", type), input("w", VarType(DType::f64, {width, width})), input("u", VarType(DType::f64, {width, width})),
                    input("b", VarType(DType::f64, {width}))};
    sources = {in.x.id(), in.w.id(), in.u.id(), in.b.id()};
    const Var y = make(in);
    first = sum(y * y * y).id();
  }
  const std::vector<Gradient> once = append_backward(program, first, {.with_respect_to = sources, .memory = memory});
  VarId loss = no_var;
  {
    const Guard guard(program);
    Var total;
    for (const Gradient& each : once) {
      REQUIRE(each.gradient != no_var);
      const Var gradient = Var::of(each.gradient);
      const Var plain = gradient.type().lod_depth > 0 ? drop_lod(gradient) : gradient;
      const Var part = sum(plain * plain);
      total = total.defined() ? total + part : part;
    }
    output("loss", total);
    loss = total.id();
  }
  with_gradients(program, loss, {.with_respect_to = sources});
  return program;
}

Feeds feeds_of(Random& random, const Value& x) {
  return {{"x", x},
          {"w", random_tensor(random, {width, width}, .8, DType::f64)},
          {"u", random_tensor(random, {width, width}, .8, DType::f64)},
          {"b", random_tensor(random, {width}, .8, DType::f64)}};
}

TEST_CASE("second derivatives of a recurrence over ragged rows equal central differences of the first") {
  const Program program = twice(ragged, VarType(DType::f64, {DDim::unknown, width}, 1));
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Random random(seed);
    const LoD lod = LoD::from_lengths({{3, 0, 1, 4}});
    const LoDTensor x(random_tensor(random, {lod.rows(), width}, 1, DType::f64), lod);
    expect_gradients(program, feeds_of(random, x), {"x", "w", "u", "b"}, {.at_most = 6, .seed = seed});
  }
}

TEST_CASE("second derivatives of a recurrence over dense steps equal central differences of the first") {
  const Program program = twice(dense, VarType(DType::f64, {DDim::unknown, DDim::unknown, width}));
  for (const DDim& dims : {DDim{4, 3, width}, DDim{1, 2, width}}) {
    Random random(7);
    expect_gradients(program, feeds_of(random, random_tensor(random, dims, 1, DType::f64)), {"x", "w", "u", "b"},
                     {.at_most = 6, .seed = 7});
  }
}

/// A recurrence with its states in slots, from a boot.
Var by_slots(const Inputs& in) {
  const ArrayVar steps = ArrayVar::unstack(in.x);
  const Var n = steps.size();
  const ArrayVar states = ArrayVar::typed(n, VarType(DType::f64, {DDim::unknown, width}));
  const Var boot = matmul(steps.read(constant(0)), in.w);
  Var i = constant(0);
  WhileLoop loop = while_loop({i});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(i, n));
    const Var before = states.read(i - 1, boot);
    states.write(i, tanh(matmul(steps.read(i), in.w) + matmul(before, in.u) + in.b) * before);
    i.update(i + 1);
  }
  return states.stack();
}

/// A loop in a loop, and a branch in the inner one; slots are read in the outer one.
Var nested(const Inputs& in) {
  const ArrayVar steps = ArrayVar::unstack(in.x);
  const Var n = steps.size();
  Var i = constant(0);
  Var h = matmul(steps.read(constant(0)), in.w);
  WhileLoop loop = while_loop({i, h});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(i, n));
    Var j = constant(0);
    Var k = h + steps.read(i);
    WhileLoop inner = while_loop({j, k});
    {
      const auto inside = inner.frame();
      inner.break_if(equal(j, constant(2)));
      const Var next = tanh(matmul(k, in.u) + in.b);
      k.update(if_else(
          less(sum(k), constant(Tensor::from(std::vector<double>{100}, DDim{}))), [&] { return std::vector<Var>{next * k}; },
          [&] { return std::vector<Var>{next}; })[0]);
      j.update(j + 1);
    }
    h.update(k * sigmoid(h));
    i.update(i + 1);
  }
  return h;
}

/// Slots are read in an inner loop that changes what the outer one carries.
Var slots_inside(const Inputs& in) {
  const ArrayVar steps = ArrayVar::unstack(in.x);
  const Var n = steps.size();
  const ArrayVar states = ArrayVar::typed(n + 1, VarType(DType::f64, {DDim::unknown, width}));
  states.write(constant(0), matmul(steps.read(constant(0)), in.w));
  Var i = constant(0);
  WhileLoop loop = while_loop({i});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(i, n));
    Var j = constant(0);
    Var k = steps.read(i) * in.b;
    WhileLoop inner = while_loop({j, k});
    {
      const auto inside = inner.frame();
      inner.break_if(equal(j, i + 1));
      k.update(tanh(matmul(k, in.u) + states.read(j)));
      j.update(j + 1);
    }
    states.write(i + 1, k);
    i.update(i + 1);
  }
  return states.stack();
}

TEST_CASE("second derivatives of loops whose backward has the general form equal central differences of the first") {
  const std::vector<std::pair<std::string, Var (*)(const Inputs&)>> all{{"carried", carried}, {"by slots", by_slots}, {"nested", nested}};
  for (const auto& [name, make] : all) {
    CAPTURE(name);
    const Program program = twice(make, VarType(DType::f64, {DDim::unknown, DDim::unknown, width}));
    for (const DDim& dims : {DDim{3, 2, width}, DDim{1, 1, width}}) {
      Random random(5);
      const Feeds feeds = feeds_of(random, random_tensor(random, dims, 1, DType::f64));
      expect_gradients(program, feeds, {"x", "w", "u", "b"}, {.at_most = 6, .seed = 5});
      RunOptions interpreted;
      interpreted.backend = Backend::interpreted;
      CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, interpreted)));
    }
  }
}

/// A branch in the loop over ragged rows: its backward has the general form. The boot and an input that stays are computed; the last states are read.
Var ragged_branch(const Inputs& in) {
  const Var boot = drop_lod(matmul(sequence_pool(in.x, "sum"), in.w));
  DynamicRNN rnn;
  Var h;
  {
    const auto block = rnn.block();
    const Var x = rnn.step_input(in.x), kept = rnn.static_input(boot);
    h = rnn.memory(boot);
    const Var a = matmul(x, in.w) + in.b;
    const Var next = if_else(
        less(sum(a), constant(Tensor::from(std::vector<double>{.1}, DDim{}))),
        [&] { return std::vector<Var>{tanh(a + matmul(h, in.u)) * kept}; }, [&] { return std::vector<Var>{tanh(h) * a}; })[0];
    rnn.update_memory(h, next);
    rnn.output(next);
  }
  return concat({drop_lod(rnn.outputs()[0]), rnn.last(h)}, 0);
}

/// Two levels: an RNN over the words of a sentence, whose steps are RNNs over the rows of a word.
Var ragged_levels(const Inputs& in) {
  DynamicRNN outer({.level = 0});
  {
    const auto block = outer.block();
    const Var words = outer.step_input(in.x);
    const Var before = outer.memory(DType::f64, {width}, .1);
    DynamicRNN inner;
    Var h;
    {
      const auto inside = inner.block();
      const Var row = inner.step_input(words);
      h = inner.memory(before);
      const Var next = tanh(matmul(row, in.w) + matmul(h, in.u) + in.b);
      inner.update_memory(h, next);
      inner.output(next);
    }
    outer.update_memory(before, inner.last(h));
    outer.output(sequence_pool(inner.outputs()[0], "sum") * before);
  }
  return drop_lod(outer.outputs()[0]);
}

TEST_CASE("second derivatives of loops over ragged rows whose backward has the general form equal central differences of the first") {
  const LoD one = LoD::from_lengths({{3, 0, 1, 4}}), two = LoD::from_lengths({{2, 0, 1, 3}, {2, 0, 1, 3, 1, 2}});
  for (const auto& [name, make, lod] : {std::tuple("branch", &ragged_branch, one), std::tuple("levels", &ragged_levels, two)}) {
    CAPTURE(name);
    const Program program = twice(make, VarType(DType::f64, {DDim::unknown, width}, lod.depth()));
    for (const std::uint64_t seed : seeds(2)) {
      INFO("seed ", seed);
      Random random(seed);
      const LoDTensor x(random_tensor(random, {lod.rows(), width}, 1, DType::f64), lod);
      expect_gradients(program, feeds_of(random, x), {"x", "w", "u", "b"}, {.at_most = 6, .seed = seed});
    }
  }
}

TEST_CASE("a second derivative of slots that an inner loop reads and the loop around it writes is refused by name") {
  CHECK_THROWS_WITH_AS(twice(slots_inside, VarType(DType::f64, {DDim::unknown, DDim::unknown, width})),
                       doctest::Contains("is read in an inner loop or branch"), UnsupportedError);
}

TEST_CASE("second derivatives of a recurrence that recompute has cut into runs equal central differences of the first") {
  const VarType type(DType::f64, {DDim::unknown, width}, 1);
  const LoD lod = LoD::from_lengths({{3, 0, 1, 5}});
  for (const std::int64_t every : {0, 1, 2}) {
    CAPTURE(every);
    const Program program = twice(ragged, type, {MemoryPolicy::Kind::recompute, every});
    for (const std::uint64_t seed : seeds(2)) {
      INFO("seed ", seed);
      Random random(seed);
      const LoDTensor x(random_tensor(random, {lod.rows(), width}, 1, DType::f64), lod);
      expect_gradients(program, feeds_of(random, x), {"x", "w", "u", "b"}, {.at_most = 6, .seed = seed});
    }
  }
}

}  // namespace
