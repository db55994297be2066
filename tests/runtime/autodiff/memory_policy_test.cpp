// SPDX-License-Identifier: Apache-2.0
// How the backward of a loop gets the values of its iterations.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/program/check.h>
#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/device.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Values = std::vector<double>;
using Kind = MemoryPolicy::Kind;

MemoryPolicy recompute(std::int64_t every) { return {Kind::recompute, every}; }
MemoryPolicy truncate(std::int64_t run) { return {Kind::truncate, 0, run, run}; }

Tensor column(const Values& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()), 1}); }

/// The gradients of `loss` by all floating inputs and parameters become outputs d_NAME.
void with_gradients(Program& program, VarId loss, const MemoryPolicy& memory) {
  BackwardOptions options;
  options.memory = memory;
  for (const Program::Port& port : program.inputs())
    if (is_floating(program.var(port.var).type.dtype)) options.with_respect_to.push_back(port.var);
  for (const auto& [var, value] : program.parameters()) options.with_respect_to.push_back(var);
  for (const Gradient& each : append_backward(program, loss, options)) {
    REQUIRE(each.gradient != no_var);
    program.add_output("d_" + program.var(each.var).name, each.gradient);
  }
  check(program);
}

/// h = w·h + x over ragged rows, L = Σh.
Program ragged_decay(const MemoryPolicy& memory, bool reverse = false) {
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f64, {DDim::unknown, 1}, 1));
    const Var w = input("w", VarType(DType::f64, {1, 1}));
    DynamicRNN rnn({.reverse = reverse});
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      const Var h = rnn.memory(DType::f64, {1});
      const Var next = matmul(h, w) + x_t;
      rnn.update_memory(h, next);
      rnn.output(next);
    }
    const Var made = sum(drop_lod(rnn.outputs()[0]));
    output("loss", made);
    loss = made.id();
  }
  with_gradients(program, loss, memory);
  return program;
}

/// The same as a loop that carries h and reads slots.
Program plain_decay(const MemoryPolicy& memory, bool by_array) {
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f64, {DDim::unknown, 1}));
    const Var w = input("w", VarType(DType::f64, {1, 1}));
    const ArrayVar steps = ArrayVar::unstack(x);
    const Var n = steps.size();
    const ArrayVar states = ArrayVar::typed(n, VarType(DType::f64, {1}));
    const Var zero = constant(Tensor::from(Values{0}, DDim{1}));
    Var h = Var::of(zero.id());
    const ArrayVar shown = ArrayVar::typed(n, VarType(DType::f64, {1}));
    Var i = constant(0);
    WhileLoop loop = while_loop(by_array ? std::vector<Var>{i} : std::vector<Var>{i, h});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(i, n));
      const Var before = by_array ? states.read(i - 1, zero) : h;
      const Var next = before * reshape(w, {1}) + steps.read(i);
      if (by_array)
        states.write(i, next);
      else
        h.update(next);
      shown.write(i, next);
      i.update(i + 1);
    }
    const Var made = sum(shown.stack());
    output("loss", made);
    loss = made.id();
  }
  with_gradients(program, loss, memory);
  return program;
}

double dw(const Program& program, const LoD& lod) {
  const Feeds feeds{{"x", lod.empty() ? Value(column({1, 1, 1, 1})) : Value(LoDTensor(column({1, 1, 1, 1}), lod))}, {"w", column({.5})}};
  const RunResult found = on_cpu(program, feeds);
  RunOptions interpreted;
  interpreted.backend = Backend::interpreted;
  CHECK(bits(on_cpu(program, feeds, interpreted)) == bits(found));
  CHECK(found["loss"].tensor().to_vector<double>() == Values{6.125});
  CHECK(found.live_step_scopes() == 0);
  return found["d_w"].tensor().to_vector<double>().at(0);
}

TEST_CASE("case 22: a ragged recurrence under each policy") {
  const LoD lod = LoD::from_lengths({{4}});
  for (const bool reverse : {false, true}) {
    CHECK(dw(ragged_decay({}, reverse), lod) == 5.75);
    CHECK(dw(ragged_decay(recompute(0), reverse), lod) == 5.75);
    CHECK(dw(ragged_decay(recompute(2), reverse), lod) == 5.75);
    CHECK(dw(ragged_decay(truncate(2), reverse), lod) == 5.0);
    CHECK(dw(ragged_decay(truncate(1), reverse), lod) == 4.25);
  }
}

TEST_CASE("case 22: a loop that carries its state, and one that writes it to slots, under each policy") {
  for (const bool by_array : {false, true}) {
    CAPTURE(by_array);
    CHECK(dw(plain_decay({}, by_array), {}) == 5.75);
    for (const std::int64_t every : {0, 1, 2, 3, 4, 5}) CHECK(dw(plain_decay(recompute(every), by_array), {}) == 5.75);
    CHECK(dw(plain_decay(truncate(2), by_array), {}) == 5.0);
    CHECK(dw(plain_decay(truncate(1), by_array), {}) == 4.25);
  }
}

TEST_CASE("an LSTM under recompute has the bits of keep, fused and interpreted") {
  Random random(9);
  const auto w = [&](const DDim& dims) { return random_tensor(random, dims); };
  const layers::LstmWeights weights{w({3, 16}), w({4, 16}), w({16}), {}, {}};
  const auto program_of = [&](const MemoryPolicy& memory) {
    Program program;
    VarId loss = no_var;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
      const Var y = drop_lod(layers::lstm({x}, {weights}).y);
      loss = sum(y * y).id();
    }
    with_gradients(program, loss, memory);
    return program;
  };
  const LoD lod = LoD::from_lengths({{3, 0, 20, 1}});
  const Feeds feeds{{"x", LoDTensor(w({lod.rows(), 3}), lod)}};
  const RunResult kept = on_cpu(program_of({}), feeds);
  const Program again = program_of(recompute(0));
  const RunResult made = on_cpu(again, feeds);
  CHECK(kept.fused_loops == 2);
  CHECK(made.fused_loops == 2);
  CHECK(bits(made) == bits(kept));
  RunOptions interpreted;
  interpreted.backend = Backend::interpreted;
  CHECK(bits(on_cpu(again, feeds, interpreted)) == bits(kept));
}

/// v ← tanh(v·w + v) for `steps` iterations over rows of 64.
Program long_loop(const MemoryPolicy& memory, std::int64_t steps) {
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    Var v = input("v", VarType(DType::f64, {64, 64}));
    const Var w = input("w", VarType(DType::f64, {64}));
    v = Var::of(v.id());
    Var i = constant(0);
    WhileLoop loop = while_loop({i, v});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(i, constant(steps)));
      v.update(tanh(v * w + v));
      i.update(i + 1);
    }
    loss = sum(v).id();
  }
  with_gradients(program, loss, memory);
  return program;
}

/// The most bytes that a run had at once; `found` gets its outputs.
std::size_t peak_bytes(const Program& program, const Feeds& feeds, std::string& found) {
  const auto memory = std::make_shared<CachingResource>(host_memory());
  {
    const RunResult result = run_fifo(run(Executable(program, std::make_shared<CpuDevice>(1, 1, memory)), feeds));
    found = bits(result);
    CHECK(result.live_step_scopes() == 0);
  }
  return memory->statistics().peak;
}

TEST_CASE("a loop of 10000 iterations under recompute takes a few percent of the memory of keep, with the same bits") {
  Random random(3);
  constexpr std::int64_t steps = 10000;
  const Feeds feeds{{"v", random_tensor(random, {64, 64}, 1, DType::f64)}, {"w", random_tensor(random, {64}, .1, DType::f64)}};
  std::string kept;
  std::string made;
  const std::size_t keep = peak_bytes(long_loop({}, steps), feeds, kept);
  const std::size_t recomputed = peak_bytes(long_loop(recompute(100), steps), feeds, made);
  CHECK(made == kept);
  const std::size_t growing = peak_bytes(long_loop(recompute(0), steps), feeds, made);
  CHECK(made == kept);
  INFO("keep takes ", keep, " bytes, recompute ", recomputed, ", in runs that grow ", growing);
  CHECK(growing * 20 < keep);
  CHECK(keep > std::size_t{64} * 64 * 8 * steps);
  CHECK(recomputed * 20 < keep);
}

TEST_CASE("policies that are not built and numbers that no policy takes are refused by name") {
  CHECK_THROWS_WITH_AS(ragged_decay({Kind::spill}), doctest::Contains("spill"), UnsupportedError);
  CHECK_THROWS_WITH_AS(ragged_decay({Kind::truncate, 0, 2, 4}), doctest::Contains("k1 and k2"), UnsupportedError);
  CHECK_THROWS_WITH_AS(ragged_decay({Kind::truncate, 0, 0, 0}), doctest::Contains("k1 and k2"), ArgumentError);
  CHECK_THROWS_WITH_AS(ragged_decay({Kind::recompute, -1}), doctest::Contains("recompute"), ArgumentError);
}

}  // namespace
