// SPDX-License-Identifier: Apache-2.0
// Policies by which the backward of a loop gets the values of its iterations.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/kept_memory.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/sanitized.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"
#include "support/with_gradients.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Values = std::vector<double>;
using Kind = MemoryPolicy::Kind;

const MemoryPolicy spill{Kind::spill, 0, 0, 0, std::filesystem::temp_directory_path().string()};
MemoryPolicy recompute(std::int64_t every) { return {Kind::recompute, every}; }
MemoryPolicy truncate(std::int64_t run) { return {Kind::truncate, 0, run, run}; }

Tensor column(const Values& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()), 1}); }

/// The gradients of `loss` by all floating inputs and parameters become outputs d_NAME.
void with_all_gradients(Program& program, VarId loss, const MemoryPolicy& memory) {
  BackwardOptions options;
  options.memory = memory;
  for (const Program::Port& port : program.inputs())
    if (is_floating(program.var(port.var).type.dtype)) options.with_respect_to.push_back(port.var);
  for (const auto& [var, value] : program.parameters()) options.with_respect_to.push_back(var);
  with_gradients(program, loss, options);
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
  with_all_gradients(program, loss, memory);
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
  with_all_gradients(program, loss, memory);
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
    CHECK(dw(ragged_decay(spill, reverse), lod) == 5.75);
    CHECK(dw(ragged_decay(truncate(2), reverse), lod) == 5.0);
    CHECK(dw(ragged_decay(truncate(1), reverse), lod) == 4.25);
  }
}

TEST_CASE("case 22: a loop that carries its state, and one that writes it to slots, under each policy") {
  for (const bool by_array : {false, true}) {
    CAPTURE(by_array);
    CHECK(dw(plain_decay({}, by_array), {}) == 5.75);
    CHECK(dw(plain_decay(spill, by_array), {}) == 5.75);
    for (const std::int64_t every : {0, 1, 2, 3, 4, 5}) CHECK(dw(plain_decay(recompute(every), by_array), {}) == 5.75);
    CHECK(dw(plain_decay(truncate(2), by_array), {}) == 5.0);
    CHECK(dw(plain_decay(truncate(1), by_array), {}) == 4.25);
  }
}

/// h = h·w + h for as long as nothing but the trip limit ends the loop; L = Σh.
Program limited_loop(const MemoryPolicy& memory, std::int64_t limit) {
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f64, {2}));
    const Var w = input("w", VarType(DType::f64, {2}));
    Var h = Var::of(x.id());
    WhileLoop loop = while_loop({h}, {.max_trips = limit});
    {
      const auto frame = loop.frame();
      loop.break_if(less(sum(h), constant(Tensor::from(Values{-100}, DDim{}))));
      h.update(h * w + h);
    }
    const Var made = sum(h);
    output("loss", made);
    loss = made.id();
  }
  with_all_gradients(program, loss, memory);
  return program;
}

TEST_CASE("a loop that its trip limit ends has as many iterations, and the bits of keep, under recompute") {
  const Feeds feeds{{"x", Tensor::from(Values{1, 2}, DDim{2})}, {"w", Tensor::from(Values{.5, .25}, DDim{2})}};
  RunOptions interpreted;
  interpreted.backend = Backend::interpreted;
  for (const std::int64_t limit : {0, 1, 2, 3, 5, 6, 7}) {
    CAPTURE(limit);
    const RunResult kept = on_cpu(limited_loop({}, limit), feeds);
    double loss = 0;
    for (const auto& [x, w] : {std::pair(1.0, .5), std::pair(2.0, .25)}) loss += x * std::pow(1 + w, limit);
    CHECK(kept["loss"].tensor().item() == doctest::Approx(loss).epsilon(1e-14));
    for (const std::int64_t every : {0, 1, 2, 3, 6, 8}) {
      CAPTURE(every);
      const Program program = limited_loop(recompute(every), limit);
      CHECK(bits(on_cpu(program, feeds)) == bits(kept));
      CHECK(bits(on_cpu(program, feeds, interpreted)) == bits(kept));
    }
  }
}

/// dL/dw, dL/dx and dL/dboot of h_t = w·h_{t−1} + x_t, L = Σ_t a_t·h_t, for one sequence, where the losses of each run of k1 iterations reach the
/// last k2 iterations up to the end of the run.
struct Decay {
  double dw = 0, dboot = 0;
  Values dx;
};
Decay truncated_decay(const Values& x, const Values& a, double w, double boot, std::int64_t k1, std::int64_t k2) {
  const auto n = static_cast<std::int64_t>(x.size());
  const auto at = [](const Values& of, std::int64_t i) { return of[static_cast<std::size_t>(i)]; };
  Values h{boot};  // h[t + 1] is behind iteration t
  for (const double each : x) h.push_back(w * h.back() + each);
  Decay made;
  made.dx.resize(x.size());
  for (std::int64_t run = 0; run * k1 < n; ++run) {
    const std::int64_t first = std::max<std::int64_t>(0, (run + 1) * k1 - k2);
    for (std::int64_t loss = std::max(run * k1, first); loss < std::min(n, (run + 1) * k1); ++loss) {
      double flows = at(a, loss);
      for (std::int64_t t = loss; t >= first; --t, flows *= w) {
        made.dw += flows * at(h, t);
        made.dx[static_cast<std::size_t>(t)] += flows;
        if (t == 0) made.dboot += flows * w;
      }
    }
  }
  return made;
}

/// h = w·h + x over ragged rows from a boot for each sequence; L = Σ a·h + Σ (last h).
Program booted_decay(const MemoryPolicy& memory, bool reverse, bool last) {
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f64, {DDim::unknown, 1}, 1)), a = input("a", VarType(DType::f64, {DDim::unknown, 1}, 1));
    const Var w = input("w", VarType(DType::f64, {1, 1})), boot = input("boot", VarType(DType::f64, {DDim::unknown, 1}));
    DynamicRNN rnn({.reverse = reverse});
    Var state;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      const Var h = rnn.memory(boot);
      state = h;
      const Var next = matmul(h, w) + x_t;
      rnn.update_memory(h, next);
      rnn.output(next);
    }
    const Var all = sum(drop_lod(rnn.outputs()[0] * a));
    const Var made = last ? all + sum(rnn.last(state)) : all;
    output("loss", made);
    loss = made.id();
  }
  with_all_gradients(program, loss, memory);
  return program;
}

TEST_CASE("truncation with any k1 and k2 has the gradients of its windows, ragged, in both directions, with last states") {
  const std::vector<std::pair<std::int64_t, std::int64_t>> numbers{{1, 1}, {1, 3}, {2, 3},  {2, 4}, {2, 5},
                                                                   {3, 2}, {4, 1}, {5, 20}, {30, 2}};
  const std::vector<std::int64_t> lengths{7, 0, 12, 1, 4};
  const LoD lod = LoD::from_lengths({lengths});
  Random random(17);
  const auto draw = [&](std::int64_t rows) { return random_tensor(random, {rows, 1}, 1, DType::f64); };
  const Tensor x = draw(lod.rows()), a = draw(lod.rows()), boot = draw(static_cast<std::int64_t>(lengths.size()));
  const double w = .7;
  for (const auto& [k1, k2] : numbers)
    for (const bool reverse : {false, true})
      for (const bool last : {false, true}) {
        CAPTURE(k1);
        CAPTURE(k2);
        CAPTURE(reverse);
        CAPTURE(last);
        const Program program = booted_decay({Kind::truncate, 0, k1, k2}, reverse, last);
        const Feeds feeds{{"x", LoDTensor(x, lod)}, {"a", LoDTensor(a, lod)}, {"w", column({w})}, {"boot", boot}};
        const RunResult found = on_cpu(program, feeds);
        RunOptions interpreted;
        interpreted.backend = Backend::interpreted;
        CHECK(bits(on_cpu(program, feeds, interpreted)) == bits(found));
        double dw = 0;
        Values dx, dboot;
        std::int64_t row = 0;
        for (std::size_t sequence = 0; sequence < lengths.size(); ++sequence) {
          const std::int64_t end = row + lengths[sequence];
          Values xs = x.rows(row, end).to_vector<double>(), as = a.rows(row, end).to_vector<double>();
          if (reverse) std::reverse(xs.begin(), xs.end()), std::reverse(as.begin(), as.end());
          if (last && !as.empty()) as.back() += 1;
          Decay made = truncated_decay(xs, as, w, boot.to_vector<double>()[sequence], k1, k2);
          if (reverse) std::reverse(made.dx.begin(), made.dx.end());
          if (last && as.empty()) made.dboot = 1;
          dw += made.dw;
          dx.insert(dx.end(), made.dx.begin(), made.dx.end());
          dboot.push_back(made.dboot);
          row = end;
        }
        CHECK(found["d_w"].tensor().item() == doctest::Approx(dw).epsilon(1e-12));
        const Values found_dx = found["d_x"].tensor().to_vector<double>(), found_boot = found["d_boot"].tensor().to_vector<double>();
        for (std::size_t i = 0; i < dx.size(); ++i) CHECK(found_dx[i] == doctest::Approx(dx[i]).epsilon(1e-12));
        for (std::size_t i = 0; i < dboot.size(); ++i) CHECK(found_boot[i] == doctest::Approx(dboot[i]).epsilon(1e-12));
      }
}

TEST_CASE("an LSTM under recompute and under spill has the bits of keep, fused and interpreted") {
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
    with_all_gradients(program, loss, memory);
    return program;
  };
  const LoD lod = LoD::from_lengths({{3, 0, 20, 1}});
  const Feeds feeds{{"x", LoDTensor(w({lod.rows(), 3}), lod)}};
  const RunResult kept = on_cpu(program_of({}), feeds);
  CHECK(kept.fused_loops == 2);
  for (const MemoryPolicy& memory : {recompute(0), spill}) {
    const Program again = program_of(memory);
    const RunResult made = on_cpu(again, feeds);
    // Four runs of five iterations: forward, again, and backward.
    CHECK(made.fused_loops == (memory.kind == Kind::recompute ? 12 : 2));
    CHECK(bits(made) == bits(kept));
    RunOptions interpreted;
    interpreted.backend = Backend::interpreted;
    CHECK(bits(on_cpu(again, feeds, interpreted)) == bits(kept));
  }
}

/// Two layers of LSTMs, the second from the ends of the sequences, whose outputs and last states are in the loss; states begin with those that are given.
Program two_layers(const MemoryPolicy& memory) {
  Random random(11);
  const auto w = [&](const DDim& dims) { return random_tensor(random, dims); };
  const layers::LstmWeights first{w({3, 16}), w({4, 16}), w({16}), {}, {}}, second{w({4, 12}), w({3, 12}), w({12}), {}, {}};
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
    const Var h = input("h", VarType(DType::f32, {DDim::unknown, 4})), c = input("c", VarType(DType::f32, {DDim::unknown, 4}));
    const layers::LstmResult lower = layers::lstm({x}, {first}, {}, {h}, {c});
    const layers::LstmResult upper = layers::lstm({lower.y}, {second}, {.direction = layers::Direction::reverse});
    const Var y = drop_lod(upper.y), z = drop_lod(lower.y);
    loss = (sum(y * y) + sum(z) + sum(lower.c[0]) + sum(upper.h[0] * upper.c[0])).id();
  }
  with_all_gradients(program, loss, memory);
  return program;
}

TEST_CASE(
    "recurrences cut into runs have the bits of keep: whatever the lengths, directions, boots and last states, and for more rows than a "
    "block") {
  Random random(12);
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{3, 0, 7, 1, 7}, {300, 5, 301, 299, 300, 0, 128}, {}, {0, 0}, {1}, {512}, {511, 1}, {9}}) {
    const LoD lod = LoD::from_lengths({lengths});
    const auto n = static_cast<std::int64_t>(lengths.size());
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod)},
                      {"h", random_tensor(random, {n, 4})},
                      {"c", random_tensor(random, {n, 4})}};
    const std::string kept = bits(on_cpu(two_layers({}), feeds));
    for (const std::int64_t every : {0, 1, 2, 7, 100, 1000}) {
      const bool many = lod.rows() > 100;
      if (many && every > 0 && every < 100) continue;
      CAPTURE(lod.to_string());
      CAPTURE(every);
      const Program program = two_layers(recompute(every));
      CHECK(bits(on_cpu(program, feeds)) == kept);
      if (many) continue;
      RunOptions interpreted;
      interpreted.backend = Backend::interpreted;
      CHECK(bits(on_cpu(program, feeds, interpreted)) == kept);
    }
  }
}

/// A cell written by hand, whose values have several readers: their gradients are sums of terms, whose order is that of the ops.
Program cell_by_hand(const MemoryPolicy& memory) {
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 4}, 1)), w = input("w", VarType(DType::f32, {4, 4}));
    const Var u = input("u", VarType(DType::f32, {4, 4})), b = input("b", VarType(DType::f32, {4})),
              d = input("d", VarType(DType::f32, {4}));
    DynamicRNN rnn;
    Var state, other;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x), again = rnn.step_slot(rnn.input_slots());
      other = rnn.memory(DType::f32, {4});
      state = rnn.memory(DType::f32, {4});
      const Var out = sigmoid(matmul(x_t, w) + matmul(other, u) + b);
      rnn.output(out * state + again);
      const Var in = sigmoid((matmul(other, w) + b) + (matmul(again, u) + d));
      const Var next = tanh((x_t + again) + (in * x_t + state)) * state + in * x_t;
      const Var shown = out * tanh(next) + other;
      rnn.update_memory(other, shown);
      rnn.output(shown * shown);
      rnn.update_memory(state, next);
    }
    const Var y = drop_lod(rnn.outputs()[0]), z = drop_lod(rnn.outputs()[1]);
    loss = (sum(y * y) + sum(z * z) + sum(rnn.last(state))).id();
  }
  with_all_gradients(program, loss, memory);
  return program;
}

TEST_CASE("a cell written by hand, whose values have several readers, has the bits of keep when it is cut into runs") {
  Random random(14);
  const LoD lod = LoD::from_lengths({{5, 0, 13, 2, 13}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 4}), lod)},
                    {"w", random_tensor(random, {4, 4})},
                    {"u", random_tensor(random, {4, 4})},
                    {"b", random_tensor(random, {4})},
                    {"d", random_tensor(random, {4})}};
  const RunResult kept = on_cpu(cell_by_hand({}), feeds);
  for (const std::int64_t every : {0, 1, 3, 5, 100}) {
    CAPTURE(every);
    const RunResult made = on_cpu(cell_by_hand(recompute(every)), feeds);
    CHECK(bits(made) == bits(kept));
    CHECK(made.fused_loops == 3 * ((every == 0 ? 4 : (13 + every - 1) / every)));
  }
}

/// Gradients of two losses of one recurrence, by a call for each.
Program two_losses(const MemoryPolicy& first, const MemoryPolicy& second) {
  Program program;
  VarId losses[2];
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f64, {DDim::unknown, 3}, 1)), boot = input("boot", VarType(DType::f64, {DDim::unknown, 2}));
    const Var w = input("w", VarType(DType::f64, {3, 2})), u = input("u", VarType(DType::f64, {2, 2})),
              b = input("b", VarType(DType::f64, {2}));
    DynamicRNN rnn;
    Var h;
    {
      const auto block = rnn.block();
      const Var x_t = rnn.step_input(x);
      h = rnn.memory(boot);
      const Var next = tanh(matmul(x_t, w) + matmul(h, u) + b);
      rnn.update_memory(h, next);
      rnn.output(next);
      rnn.output(next * sigmoid(matmul(x_t, w)));
    }
    const Var y = drop_lod(rnn.outputs()[0]), z = drop_lod(rnn.outputs()[1]), last = rnn.last(h);
    losses[0] = sum(y * y).id();
    losses[1] = (sum(exp(z)) + sum(last * last)).id();
  }
  for (const int i : {0, 1}) {
    BackwardOptions options;
    options.memory = i == 0 ? first : second;
    for (const Program::Port& port : program.inputs()) options.with_respect_to.push_back(port.var);
    for (const Gradient& each : append_backward(program, losses[i], options))
      program.add_output(std::to_string(i) + program.var(each.var).name, each.gradient);
  }
  return program;
}

TEST_CASE("a recurrence that is cut into runs has gradients of another loss by a second call, those of keep to rounding") {
  Random random(15);
  const LoD lod = LoD::from_lengths({{5, 0, 13, 1, 13}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}, 1, DType::f64), lod)},
                    {"boot", random_tensor(random, {5, 2}, 1, DType::f64)},
                    {"w", random_tensor(random, {3, 2}, 1, DType::f64)},
                    {"u", random_tensor(random, {2, 2}, 1, DType::f64)},
                    {"b", random_tensor(random, {2}, 1, DType::f64)}};
  const RunResult kept = on_cpu(two_losses({}, {}), feeds);
  for (const std::int64_t every : {0, 1, 4, 100})
    for (const MemoryPolicy& second : {MemoryPolicy(), spill, recompute(0), recompute(3)}) {
      CAPTURE(every);
      const RunResult made = on_cpu(two_losses(recompute(every), second), feeds);
      for (const char* name : {"0x", "0boot", "0w", "0u", "0b", "1x", "1boot", "1w", "1u", "1b"}) {
        CAPTURE(name);
        const std::vector<double> wanted = kept[name].tensor().to_vector<double>(), found = made[name].tensor().to_vector<double>();
        if (name[0] == '0') CHECK(found == wanted);
        REQUIRE(found.size() == wanted.size());
        for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == doctest::Approx(wanted[i]).epsilon(1e-12));
      }
    }
  CHECK_THROWS_WITH_AS(two_losses(recompute(4), {Kind::truncate, 0, 2, 2}), doctest::Contains("recompute has cut the loop into runs"),
                       UnsupportedError);
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
  with_all_gradients(program, loss, memory);
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

TEST_CASE("a loop of 10000 iterations under recompute, or under spill, takes a few percent of the memory of keep, with the same bits") {
  Random random(3);
  constexpr std::int64_t steps = sanitized ? 1500 : 10000;
  constexpr std::size_t share = sanitized ? 8 : 20;
  const Feeds feeds{{"v", random_tensor(random, {64, 64}, 1, DType::f64)}, {"w", random_tensor(random, {64}, .1, DType::f64)}};
  std::string kept;
  std::string made;
  const std::size_t keep = peak_bytes(long_loop({}, steps), feeds, kept);
  const std::size_t recomputed = peak_bytes(long_loop(recompute(100), steps), feeds, made);
  CHECK(made == kept);
  const std::size_t growing = peak_bytes(long_loop(recompute(0), steps), feeds, made);
  CHECK(made == kept);
  const std::size_t in_files = peak_bytes(long_loop(spill, steps), feeds, made);
  CHECK(made == kept);
  INFO("keep takes ", keep, " bytes, recompute ", recomputed, ", in runs that grow ", growing, ", spill ", in_files);
  CHECK(in_files * share < keep);
  CHECK(growing * share < keep);
  CHECK(keep > std::size_t{64} * 64 * 8 * steps);
  CHECK(recomputed * share < keep);
}

/// An LSTM of 64 units over rows of 8, whose loss is of its last states.
Program long_lstm(const MemoryPolicy& memory) {
  Random random(5);
  const auto w = [&](const DDim& dims) { return random_tensor(random, dims, .3); };
  const layers::LstmWeights weights{w({8, 256}), w({64, 256}), w({256}), {}, {}};
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 8}, 1));
    const layers::LstmResult made = layers::lstm({x}, {weights});
    loss = sum(made.h[0] * made.h[0]).id();
  }
  BackwardOptions options;
  options.memory = memory;
  for (const auto& [var, value] : program.parameters()) options.with_respect_to.push_back(var);
  with_gradients(program, loss, options);
  return program;
}

TEST_CASE("a fused LSTM of 10000 iterations under recompute takes a few percent of the memory of keep, with the same bits") {
  Random random(6);
  constexpr std::int64_t steps = sanitized ? 1500 : 10000;
  const LoD lod = LoD::from_lengths({{steps - 7, steps, 0, 3, steps}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 8}), lod)}};
  std::string kept;
  std::string made;
  const std::size_t keep = peak_bytes(long_lstm({}), feeds, kept);
  for (const std::int64_t every : {0, 100}) {
    const std::size_t recomputed = peak_bytes(long_lstm(recompute(every)), feeds, made);
    CHECK(made == kept);
    INFO("keep takes ", keep, " bytes, recompute(", every, ") ", recomputed);
    CHECK(recomputed * (sanitized ? 5 : 20) < keep);
  }
}

/// The bytes that loops kept in a run, by loop and policy.
std::map<std::string, KeptMemory::Bytes> kept_by_loops(const Program& program, const Feeds& feeds) {
  const auto kept = std::make_shared<KeptMemory>();
  Tracer counter(KeptMemory::counting(kept));
  RunOptions options;
  options.tracer = &counter;
  const RunResult counted = on_cpu(program, feeds, options);
  CHECK(bits(counted) == bits(on_cpu(program, feeds)));
  return kept->loops();
}

TEST_CASE("the bytes that loops keep are counted by loop and policy") {
  Random random(3);
  constexpr std::int64_t steps = 100;
  constexpr std::size_t state = std::size_t{64} * 64 * 8;
  const Feeds feeds{{"v", random_tensor(random, {64, 64}, 1, DType::f64)}, {"w", random_tensor(random, {64}, .1, DType::f64)}};
  const auto count = [&](const MemoryPolicy& memory) { return kept_by_loops(long_loop(memory, steps), feeds); };
  const auto kept = count({});
  REQUIRE(kept.size() == 1);
  CHECK(kept.begin()->first.ends_with(" under keep"));
  CHECK(kept.begin()->second.memory == steps * state);
  CHECK(kept.begin()->second.files == 0);
  const auto spilled = count(spill);
  REQUIRE(spilled.size() == 1);
  CHECK(spilled.begin()->first.ends_with(" under spill"));
  CHECK(spilled.begin()->second.memory == 0);
  CHECK(spilled.begin()->second.files >= steps * state);
  // Ten runs, and the ten iterations of one of them.
  const auto recomputed = count(recompute(10));
  REQUIRE(recomputed.size() == 2);
  for (const auto& [loop, bytes] : recomputed) {
    INFO(loop);
    CHECK(loop.ends_with(" under recompute(10)"));
    CHECK(bytes.memory >= 10 * state);
    CHECK(bytes.memory <= 12 * state);
  }
}

TEST_CASE("a fused recurrence tells what it keeps, and stays fused") {
  const Program program = ragged_decay({});
  const Feeds feeds{{"x", LoDTensor(column({1, 1, 1, 1}), LoD::from_lengths({{4}}))}, {"w", column({.5})}};
  const auto kept = kept_by_loops(program, feeds);
  REQUIRE(kept.size() == 1);
  CHECK(kept.begin()->second.memory > 0);
  const auto counts = std::make_shared<KeptMemory>();
  Tracer counter(KeptMemory::counting(counts));
  RunOptions options;
  options.tracer = &counter;
  CHECK(on_cpu(program, feeds, options).fused_loops == on_cpu(program, feeds).fused_loops);
}

TEST_CASE("spill on a device that is not the host is refused by the name of the loop") {
  const auto device = std::make_shared<SimDevice>();
  for (const Program& program : {ragged_decay(spill), plain_decay(spill, false)})
    CHECK_THROWS_WITH_AS(Executable(program, device), doctest::Contains("memory policy spill: expected a loop on the host"),
                         UnsupportedError);
}

TEST_CASE("kept values of a fused recurrence under spill lie in files: memory holds none of them") {
  Random random(4);
  const layers::LstmWeights weights{
      random_tensor(random, {8, 256}), random_tensor(random, {64, 256}), random_tensor(random, {256}), {}, {}};
  const auto program_of = [&](const MemoryPolicy& memory) {
    Program program;
    VarId loss = no_var;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 8}, 1));
      loss = sum(layers::lstm({x}, {weights}).h[0]).id();
    }
    with_all_gradients(program, loss, memory);
    return program;
  };
  const LoD lod = LoD::from_lengths({{300, 0, 200, 1}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 8}), lod)}};
  std::string kept, made;
  const std::size_t keep = peak_bytes(program_of({}), feeds, kept);
  const std::size_t in_files = peak_bytes(program_of(spill), feeds, made);
  CHECK(made == kept);
  INFO("keep takes ", keep, " bytes, spill ", in_files);
  // Four gates, tanh(c), and both states before the step: 64 elements a row each.
  const auto values = static_cast<std::size_t>(7 * 64 * lod.rows()) * sizeof(float);
  CHECK(in_files + values < keep);
}

TEST_CASE("a spill folder that is not there is one error that names it, fused and interpreted") {
  const Program program = ragged_decay({Kind::spill, 0, 0, 0, "/no/such/folder"});
  const Feeds feeds{{"x", LoDTensor(column({1, 1, 1, 1}), LoD::from_lengths({{4}}))}, {"w", column({.5})}};
  for (const Backend backend : {Backend::fused, Backend::interpreted}) {
    RunOptions options;
    options.backend = backend;
    CHECK_THROWS_WITH_AS(on_cpu(program, feeds, options), doctest::Contains("'/no/such/folder'"), OutOfMemoryError);
  }
}

/// h = tanh(h / 2 + table[argmax x] + (h · x as f64, back again)) over ragged rows, L = Σ h².
Program of_several_dtypes(const MemoryPolicy& memory) {
  Program program;
  VarId loss = no_var;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
    const Var table = input("table", VarType(DType::f32, {3, 3}));
    DynamicRNN rnn;
    {
      const auto block = rnn.block();
      const Var now = rnn.step_input(x), h = rnn.memory(DType::f32, {3});
      const Var place = call1("argmax", {now}, {{"axis", std::int64_t{-1}}, {"keepdims", false}});
      const Var next = tanh(h * 0.5f + gather(table, place) + cast(cast(h, DType::f64) * cast(now, DType::f64), DType::f32));
      rnn.update_memory(h, next);
      rnn.output(next);
    }
    const Var y = drop_lod(rnn.outputs()[0]), made = sum(y * y);
    output("loss", made);
    loss = made.id();
  }
  with_all_gradients(program, loss, memory);
  return program;
}

TEST_CASE("a recurrence with values of several dtypes has the same gradients by bits under every policy, and may be truncated") {
  Random random(9);
  const LoD lod = LoD::from_lengths({{7, 0, 4, 7}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod)}, {"table", random_tensor(random, {3, 3})}};
  const RunResult kept = on_cpu(of_several_dtypes({}), feeds);
  for (const MemoryPolicy& memory : {spill, recompute(0), recompute(3)}) {
    const RunResult found = on_cpu(of_several_dtypes(memory), feeds);
    CHECK(bits(found) == bits(kept));
  }
  CHECK(on_cpu(of_several_dtypes({Kind::truncate, 0, 2, 4}), feeds)["loss"].tensor().to_vector<float>() ==
        kept["loss"].tensor().to_vector<float>());
}

TEST_CASE("a policy of a single loop is that of its body block, and one of a loop that is not there is refused") {
  const auto made = [](int body) {
    Program program;
    VarId loss = no_var;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f64, {DDim::unknown, 1}, 1));
      DynamicRNN rnn;
      {
        const auto block = rnn.block();
        const Var x_t = rnn.step_input(x);
        const Var h = rnn.memory(DType::f64, {1});
        const Var next = tanh(h + x_t);
        rnn.update_memory(h, next);
        rnn.output(next);
      }
      loss = sum(drop_lod(rnn.outputs()[0])).id();
    }
    BackwardOptions options;
    options.with_respect_to = {program.inputs().at(0).var};
    options.per_loop = {{body, recompute(0)}};
    static_cast<void>(append_backward(program, loss, options));
    return program.blocks().size();
  };
  CHECK(made(1) > 2);
  CHECK_THROWS_WITH_AS(made(5), "append_backward: per_loop: expected the body block of a loop, one of 1, found 5", ArgumentError);
}

TEST_CASE("numbers that no policy takes are refused by name, and two numbers of a truncation for a loop that is no ragged recurrence") {
  CHECK_THROWS_WITH_AS(plain_decay({Kind::truncate, 0, 2, 4}, false), doctest::Contains("recurrences over ragged rows"), UnsupportedError);
  CHECK_THROWS_WITH_AS(ragged_decay({Kind::truncate, 0, 0, 0}), doctest::Contains("k1 and k2"), ArgumentError);
  CHECK_THROWS_WITH_AS(ragged_decay({Kind::recompute, -1}), doctest::Contains("recompute"), ArgumentError);
}

}  // namespace
