// SPDX-License-Identifier: Apache-2.0
// Gradients of programs drawn at random: loops in loops, arrays, branches, ragged rows of two levels.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/autodiff/memory_policy_text.h>
#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/lowering/skip_repacking.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>
#include <millrace/tensor/sanitized.h>

#include "support/central_difference.h"
#include "support/random_lod.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

constexpr std::int64_t width = 3;

/// `seeds`, or MILLRACE_SEEDS of them where that is set: `MILLRACE_SEEDS=5000 test_runtime -tc="*under each policy*"`.
std::vector<std::uint64_t> many_seeds(std::uint64_t count) {
  const char* wanted = std::getenv("MILLRACE_SEEDS");
  return seeds(wanted == nullptr ? count : std::strtoull(wanted, nullptr, 10));
}

/// Statements over values of f64 [width]; smooth, so that differences tell the truth.
class RandomStatements {
 public:
  RandomStatements(Random& random, std::vector<Var> values) : random_(random), values_(std::move(values)) {}

  Var build(int depth, int statements) {
    for (int i = 0; i < statements; ++i) values_.push_back(statement(depth));
    return values_.back();
  }

 private:
  Var any() { return values_[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(values_.size()) - 1))]; }
  Var small(const Var& x) { return tanh(x) * constant(Tensor::from(std::vector<double>{.8}, DDim{})); }

  Var statement(int depth) {
    switch (random_.between(0, depth > 0 ? 7 : 3)) {
      case 0: return small(any() + any());
      case 1: return small(any() * any());
      case 2: return sigmoid(any()) - any() * constant(Tensor::from(std::vector<double>{.3}, DDim{}));
      case 3: return small(any() - any());
      case 4: return loop(depth);
      case 5: return array_loop(depth);
      case 6: return branch(depth);
      default: return data_loop(depth);
    }
  }

  /// The state goes through some iterations of statements.
  Var loop(int depth) {
    Var state = Var::of(any().id());
    Var other = Var::of(any().id());
    if (state.id() == other.id()) other = Var::of(small(other).id());
    Var i = constant(0);
    const std::int64_t times = random_.between(0, 3);
    WhileLoop made = while_loop({i, state, other});
    {
      const auto frame = made.frame();
      made.break_if(equal(i, constant(times)));
      RandomStatements inside(random_, inner({state, other}));
      const Var next = inside.build(depth - 1, 2);
      if (random_.coin()) other.update(small(other + state));
      state.update(next);
      i.update(i + 1);
    }
    return state + other;
  }

  /// Slots are written and read again, two iterations back too.
  Var array_loop(int depth) {
    const std::int64_t times = random_.between(1, 4);
    const ArrayVar slots(constant(times + 1));
    const ArrayVar shown(constant(times));
    slots.write(constant(0), any());
    Var i = constant(0);
    WhileLoop made = while_loop({i});
    {
      const auto frame = made.frame();
      made.break_if(equal(i, constant(times)));
      const Var before = slots.read(i);
      RandomStatements inside(random_, inner({before}));
      const Var next = inside.build(depth - 1, 2);
      slots.write(i + 1, next);
      shown.write(i, before * next);
      i.update(i + 1);
    }
    const Var last = slots.read(constant(times));
    return random_.coin() ? last + reduce(shown.stack(), "sum", {0}) : small(last + slots.read(constant(times - 1)));
  }

  Var branch(int depth) {
    const Var x = any();
    const Var condition = greater(sum(x), constant(Tensor::from(std::vector<double>{.1}, DDim{})));
    const auto make = [&] {
      RandomStatements inside(random_, values_);
      return std::vector<Var>{inside.build(depth - 1, 2)};
    };
    return if_else(condition, make, make)[0];
  }

  /// The number of iterations depends on the values.
  Var data_loop(int depth) {
    Var state = Var::of(any().id());
    WhileLoop made = while_loop({state}, {.max_trips = 5});
    {
      const auto frame = made.frame();
      made.break_if(less(sum(state * state), constant(Tensor::from(std::vector<double>{.2}, DDim{}))));
      RandomStatements inside(random_, inner({state}));
      state.update(inside.build(depth - 1, 1) * constant(Tensor::from(std::vector<double>{.5}, DDim{})));
    }
    return state;
  }

  std::vector<Var> inner(std::vector<Var> own) const {
    std::vector<Var> all = values_;
    for (Var& var : own) all.push_back(Var::of(var.id()));
    return all;
  }

  Random& random_;
  std::vector<Var> values_;
};

struct Drawn {
  Program program;
  VarId loss = no_var;
  std::vector<VarId> inputs;
};

/// Appends the gradients as outputs d_NAME; zero gradients are no outputs. Gives the names of the others.
std::vector<std::string> with_gradients(Drawn& drawn, MemoryPolicy memory = {}) {
  BackwardOptions options;
  options.with_respect_to = drawn.inputs;
  options.memory = memory;
  std::vector<std::string> names;
  for (const Gradient& each : append_backward(drawn.program, drawn.loss, options)) {
    if (each.gradient == no_var) continue;
    names.push_back(drawn.program.var(each.var).name);
    drawn.program.add_output("d_" + names.back(), each.gradient);
  }
  check(drawn.program);
  return names;
}

Drawn random_drawn(std::uint64_t seed) {
  Random random(seed);
  Drawn drawn;
  const Guard guard(drawn.program);
  std::vector<Var> values;
  for (const char* name : {"a", "b", "c"}) {
    values.push_back(input(name, VarType(DType::f64, {width})));
    drawn.inputs.push_back(values.back().id());
  }
  Var all = values[0] + values[1] * values[2];
  RandomStatements statements(random, values);
  const Var made = statements.build(2, 5);
  const Var loss = sum(made * made + all);
  output("loss", loss);
  drawn.loss = loss.id();
  return drawn;
}

Feeds random_feeds(std::uint64_t seed) {
  Random random(seed + 1000);
  Feeds feeds;
  for (const char* name : {"a", "b", "c"}) feeds.emplace(name, random_tensor(random, {width}, 1, DType::f64));
  return feeds;
}

TEST_CASE("gradients of random programs of loops, arrays and branches equal central differences") {
  for (const std::uint64_t seed : many_seeds(60)) {
    INFO("seed ", seed);
    Drawn drawn = random_drawn(seed);
    const std::vector<std::string> names = with_gradients(drawn);
    CHECK(names.size() == 3);
    const std::string printed = print(drawn.program);
    CHECK(print(parse_program(printed, {}, drawn.program.shared_registry())) == printed);
    DifferenceOptions options;
    options.tolerance = 1e-5;
    options.step = 1e-6;  // the loss jumps where a condition on values changes
    expect_gradients(drawn.program, random_feeds(seed), names, options);
    const RunResult whole = on_cpu(drawn.program, random_feeds(seed));
    RunOptions interpreted;
    interpreted.backend = Backend::interpreted;
    CHECK(bits(on_cpu(drawn.program, random_feeds(seed), interpreted)) == bits(whole));
    CHECK(whole.live_step_scopes() == 0);
  }
}

MemoryPolicy recompute(std::int64_t every) { return {MemoryPolicy::Kind::recompute, every}; }
MemoryPolicy truncate(std::int64_t iterations) { return {MemoryPolicy::Kind::truncate, 0, iterations, iterations}; }
MemoryPolicy spill() { return {MemoryPolicy::Kind::spill, 0, 0, 0, std::filesystem::temp_directory_path().string()}; }

/// The bits of the program with its gradients in the backend that the runtime takes, which are those of the interpreted run.
std::string bits_under(Drawn drawn, const Feeds& feeds, const MemoryPolicy& memory) {
  INFO("policy ", to_string(memory));
  CHECK(!with_gradients(drawn, memory).empty());
  RunOptions interpreted;
  interpreted.backend = Backend::interpreted;
  const std::string found = bits(on_cpu(drawn.program, feeds));
  CHECK(bits(on_cpu(drawn.program, feeds, interpreted)) == found);
  return found;
}

/// Under each of `policies` the program has the bits that it has under keep.
void expect_bits_of_keep(const Drawn& drawn, const Feeds& feeds, const std::vector<MemoryPolicy>& policies) {
  const std::string kept = bits_under(drawn, feeds, {});
  for (const MemoryPolicy& memory : policies) {
    INFO("policy ", to_string(memory));
    CHECK(bits_under(drawn, feeds, memory) == kept);
  }
}

/// Policies that compute the gradients of `keep` for loops of fewer than 100 iterations.
std::vector<MemoryPolicy> exact_policies() { return {spill(), recompute(0), recompute(1), recompute(2), recompute(3), truncate(100)}; }

TEST_CASE("gradients of random programs under each policy have the bits of keep, truncated ones the same bits in each backend") {
  for (const std::uint64_t seed : many_seeds(8)) {
    INFO("seed ", seed);
    expect_bits_of_keep(random_drawn(seed), random_feeds(seed), exact_policies());
    for (const std::int64_t run : {1, 2}) bits_under(random_drawn(seed), random_feeds(seed), truncate(run));
  }
}

TEST_CASE("gradients of random programs with loops that their trip limits end have the bits of keep under recompute") {
  for (const std::uint64_t seed : {1255, 1328, 1406, 1409, 1411}) {
    INFO("seed ", seed);
    expect_bits_of_keep(random_drawn(seed), random_feeds(seed), {recompute(0), recompute(1), recompute(3)});
  }
}

TEST_CASE("second derivatives of random programs equal central differences of the first") {
  for (const std::uint64_t seed : many_seeds(8)) {
    INFO("seed ", seed);
    Drawn drawn = random_drawn(seed);
    BackwardOptions options;
    options.with_respect_to = drawn.inputs;
    const std::vector<Gradient> first = append_backward(drawn.program, drawn.loss, options);
    {
      const Guard guard(drawn.program);
      Var total = Var::of(drawn.loss);
      for (const Gradient& each : first)
        if (each.gradient != no_var) total = total + sum(Var::of(each.gradient) * Var::of(each.gradient));
      output("squares", total);
      drawn.loss = total.id();
    }
    const std::vector<std::string> names = with_gradients(drawn);
    DifferenceOptions difference;
    difference.tolerance = 1e-5;
    difference.step = 1e-6;
    expect_gradients(drawn.program, random_feeds(seed), names, difference, "squares");
  }
}

/// Two levels: sentences of words of rows. An inner RNN over the rows of a word, an outer one over the words of a sentence.
Drawn two_levels(bool sorted, bool reverse) {
  Drawn drawn;
  const Guard guard(drawn.program);
  const Var x = input("x", VarType(DType::f64, {DDim::unknown, width}, 2));
  const Var w = input("w", VarType(DType::f64, {width, width}));
  const Var u = input("u", VarType(DType::f64, {width, width}));
  drawn.inputs = {x.id(), w.id(), u.id()};
  DynamicRNN outer({.level = 0, .sort_by_length = sorted, .reverse = reverse});
  {
    const auto block = outer.block();
    const Var words = outer.step_input(x);
    const Var before = outer.memory(DType::f64, {width});
    DynamicRNN inner({.sort_by_length = sorted});
    Var h;
    {
      const auto inside = inner.block();
      const Var row = inner.step_input(words);
      h = inner.memory(before);
      const Var next = tanh(matmul(row, w) + matmul(h, u));
      inner.update_memory(h, next);
      inner.output(next);
    }
    const Var last = inner.last(h);
    outer.update_memory(before, last);
    outer.output(last * 0.5);
    outer.output(inner.outputs()[0]);
  }
  const Var y = drop_lod(outer.outputs()[0]);
  const Var z = drop_lod(outer.outputs()[1]);
  const Var loss = sum(y * y) + sum(z * z * z);
  output("loss", loss);
  drawn.loss = loss.id();
  return drawn;
}

Feeds two_level_feeds(Random& random) {
  const LoD lod = random_lod(random, 2, 3);
  return {{"x", LoDTensor(random_tensor(random, {lod.rows(), width}, 1, DType::f64), lod)},
          {"w", random_tensor(random, {width, width}, .7, DType::f64)},
          {"u", random_tensor(random, {width, width}, .7, DType::f64)}};
}

TEST_CASE("gradients of an RNN in an RNN over two levels equal central differences") {
  for (const std::uint64_t seed : many_seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    const bool sorted = random.coin();
    Drawn drawn = two_levels(sorted, random.coin());
    const std::vector<std::string> names = with_gradients(drawn);
    CHECK(names.size() == 3);
    DifferenceOptions options;
    options.at_most = 9;
    expect_gradients(drawn.program, two_level_feeds(random), names, options);
  }
}

TEST_CASE("gradients of an RNN in an RNN over two levels under each policy have the bits of keep") {
  for (const std::uint64_t seed : many_seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    const bool sorted = random.coin();
    const Drawn drawn = two_levels(sorted, random.coin());
    expect_bits_of_keep(drawn, two_level_feeds(random), exact_policies());
  }
}

/// Recurrent layers of any kind and direction over ragged rows, dense layers and residual sums between them.
Drawn random_stack(std::uint64_t seed) {
  Random random(seed);
  Drawn drawn;
  const Guard guard(drawn.program);
  const auto weight = [&](const DDim& dims) { return random_tensor(random, dims, .7); };
  Var x = input("x", VarType(DType::f32, {DDim::unknown, width}, 1));
  drawn.inputs = {x.id()};
  std::vector<Var> last;
  const std::int64_t layers = random.between(2, 6);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto direction = std::array{layers::Direction::forward, layers::Direction::forward, layers::Direction::reverse,
                                      layers::Direction::bidirectional}[static_cast<std::size_t>(random.between(0, 3))];
    const std::string name = "layer" + std::to_string(layer);
    const std::size_t directions = layers::directions(direction);
    Var y;
    if (random.coin()) {
      const layers::LstmWeights each{weight({width, 4 * width}), weight({width, 4 * width}), weight({4 * width}), {}, {}};
      layers::LstmOptions options;
      options.direction = direction;
      options.name = name;
      const layers::LstmResult made = layers::lstm({x}, std::vector(directions, each), options);
      y = made.y;
      if (random.coin()) last.push_back(made.h[0]);
    } else {
      const layers::GruWeights each{weight({width, 3 * width}), weight({width, 3 * width}), weight({3 * width}), {}};
      layers::GruOptions options;
      options.direction = direction;
      options.name = name;
      y = layers::gru({x}, std::vector(directions, each), options).y;
    }
    if (directions == 2) y = tanh(matmul(y, parameter(name + "_join", weight({2 * width, width}))));
    if (random.between(0, 3) == 0) y = tanh(matmul(y, parameter(name + "_dense", weight({width, width}))));
    if (random.between(0, 3) == 0) y = y + x;
    x = y;
  }
  const Var rows = drop_lod(x);
  Var loss = sum(rows * rows);
  for (const Var& each : last) loss = loss + sum(each * each);
  output("loss", loss);
  drawn.loss = loss.id();
  for (const auto& [var, value] : drawn.program.parameters()) drawn.inputs.push_back(var);
  return drawn;
}

TEST_CASE("gradients of stacks of layers have the same bits where backward loops hand on slots and run side by side") {
  std::int64_t together = 0;
  for (const std::uint64_t seed : many_seeds(40)) {
    INFO("seed ", seed);
    Random random(seed + 500);
    LoD::Level lengths;
    for (std::int64_t i = random.between(0, 6); i > 0; --i) lengths.push_back(random.between(0, 9));
    const LoD lod = LoD::from_lengths({lengths});
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), width}), lod)}};
    for (const MemoryPolicy& memory : {MemoryPolicy(), recompute(2), truncate(2)}) {
      INFO("policy ", to_string(memory));
      Drawn drawn = random_stack(seed);
      with_gradients(drawn, memory);
      const std::string wanted = bits(on_cpu(drawn.program, feeds));
      skip_repacking(drawn.program, true);
      check(drawn.program);
      const RunResult found = run_fifo(run(Executable(drawn.program, make_cpu_device(2)), feeds));
      CHECK(bits(found) == wanted);
      together += found.loops_side_by_side;
    }
  }
  CHECK(together > 0);
}

}  // namespace
