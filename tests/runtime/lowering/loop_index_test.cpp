// SPDX-License-Identifier: Apache-2.0
// Loops whose slots are numbered by counts that fall, jump, start anywhere, or look ahead.
#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>
#include <millrace/runtime/lowering/keep_values.h>
#include <millrace/runtime/program/check.h>

#include "runtime/loops/cpu_fused/fused_cells.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// The count of a loop drawn at random: `now` is the slot of the iteration, which goes from `low` to `high`, or back.
struct Count {
  Var carried;  ///< updated by the loop
  Var now;
  std::int64_t by = 1;
  bool falls = false;
};

/// A dense batch through a loop drawn at random. Arrays have room for what is read before and behind the slots of the iterations.
class RandomLoop {
 public:
  static constexpr std::int64_t around = 3;

  RandomLoop(std::uint64_t seed, std::int64_t rows) : weights_(seed), rows_(rows) {}

  Program program() {
    Program program;
    program.set_title("a loop that counts in its own way");
    const Guard guard(program);
    c_ = random().between(1, 6);
    h_ = random().between(1, 9);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, rows_, c_}));
    const ArrayVar steps = ArrayVar::unstack(x);
    fed_ = random().coin();
    const Var n = !fed_ ? steps.size() - around * 2 : input("n", VarType(DType::i64, {}));
    const bool falls = random().between(0, 3) != 0;
    const bool carried_falls = random().coin();
    const std::int64_t start = random().between(-2, 2);
    const std::vector<ArrayVar> outputs = arrays(n);
    const std::int64_t window = random().between(0, 3);
    const ArrayVar states(n + 2 * around, "states");
    for (std::int64_t lag = 1; lag <= window; ++lag)
      states.write(falls ? n + (around + lag - 1) : Var(around - lag), weights_({rows_, h_}));
    Var count = carried_falls ? n - 1 + start : Var(start);
    Var state = weights_({rows_, h_});
    auto loop = while_loop({count, state});
    {
      auto frame = loop.frame();
      const Var iteration = carried_falls ? n - 1 + start - count : count - start;
      stop(loop, count, n, start, carried_falls);
      const Var now = (falls ? n - 1 - iteration : iteration) + around;
      std::vector<Var> parts;
      for (std::int64_t reads = random().between(1, 3); reads > 0; --reads)
        parts.push_back(steps.read(shifted(now, random().between(-around, around))));
      if (random().coin())
        parts.push_back(steps.read(shifted(falls ? iteration + around : n - 1 - iteration + around, random().between(-1, 1))));
      Var sum = matmul(state, weights_({h_, h_}));
      for (const Var& part : parts) sum = sum + matmul(part, weights_({c_, h_}));
      for (std::int64_t lag = 1; lag <= window; ++lag) sum = sum + states.read(falls ? now + lag : now - lag) * weights_({h_});
      const Var next = tanh(sum);
      states.write(now, next);
      outputs[0].write(falls ? n - 1 - iteration : iteration, next * 0.5f);
      outputs[1].write(falls ? iteration : n - 1 - iteration, matmul(next, weights_({h_, 3})));
      outputs[2].write(iteration * 2 + 1, sigmoid(matmul(parts[0], weights_({c_, 2}))));
      state.update(next);
      count.update(carried_falls ? count - 1 : count + 1);
    }
    output("a", outputs[0].stack());
    output("b", outputs[1].stack());
    output("odd", outputs[2].read(random().between(0, 1) * 2 + 1));
    output("state", state);
    output("count", count);
    check(program);
    return program;
  }
  Feeds feeds() {
    const std::int64_t n = random().between(2, 40);
    Feeds made{{"x", random_tensor(random(), {n + 2 * around, rows_, c_})}};
    if (fed_) made.emplace("n", Tensor::scalar(n));
    return made;
  }

 private:
  Random& random() { return weights_.random; }
  static Var shifted(const Var& now, std::int64_t by) { return by == 0 ? now : by > 0 ? now + by : now - -by; }
  std::vector<ArrayVar> arrays(const Var& n) { return {ArrayVar(n, "a"), ArrayVar(n, "b"), ArrayVar(n * 2, "odd")}; }

  void stop(WhileLoop& loop, const Var& count, const Var& n, std::int64_t start, bool falls) {
    const Var last = falls ? Var(start - 1) : n + start;
    switch (random().between(0, 3)) {
      case 0: return loop.break_if(equal(count, last));
      case 1: return loop.break_if(falls ? less(count, Var(start)) : greater_equal(count, last));
      case 2: return loop.break_if(falls ? less_equal(count, last) : logical_not(less(count, last)));
      default: return loop.break_if(equal(falls ? count - start + 1 : n - count + start, constant(0)));
    }
  }

  Weights weights_;
  std::int64_t rows_, c_ = 1, h_ = 1;
  bool fed_ = false;
};

/// Why the first loop of block 0 does not run in one piece; nothing when it does.
std::string reason(const Program& program) {
  for (const Op& op : program.block(0).ops) {
    if (op.type != "while") continue;
    try {
      static_cast<void>(FusedLoop(program, 0, op));
      return {};
    } catch (const UnsupportedError& error) {
      return error.what();
    }
  }
  return "no loop";
}

TEST_CASE("loops that count up, down, from anywhere and in both directions at once run in one piece, with the bits of their iterations") {
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    Random random(seed * 104729);
    RandomLoop loop(seed, random.coin() ? random.between(1, 5) : random.between(30, 70));
    const Program program = loop.program();
    CHECK(reason(program) == "");
    for (int i = 0; i < 2; ++i) CHECK(compare(program, loop.feeds()) == 1);
  }
}

/// Ragged rows, each beside the one before it and, as far as there is one, the one behind it.
Program beside_neighbours(bool sorted, bool skips_first) {
  Program program;
  const Guard guard(program);
  Weights w(5);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
  const Var boot = input("boot", VarType(DType::f32, {DDim::unknown, 3}));
  const auto [steps, order] = unpack(x, 0, sorted);
  const Var n = steps.size();
  const build::TensorArray states(n, order, "states"), outputs(n, "outputs");
  Var step = skips_first ? 1 : 0;
  Var kept = input("kept", VarType(DType::f32, {DDim::unknown, 4}));
  auto loop = while_loop({step, kept});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const Var now = steps.read(step);
    const Var before = shrink(steps.read(step - 1, boot), now);
    const Var state = tanh(matmul(shrink(kept, now), w({4, 4})) + matmul(before, w({3, 4})) + matmul(now, w({3, 4})));
    if (!skips_first) states.write(step, state);
    outputs.write(skips_first ? step - 1 : n - 1 - step, state * 2.0f);
    kept.update(state);
    step.update(step + 1);
  }
  if (!skips_first) output("y", pack(states, 0, order));
  output("first", outputs.read(constant(0)));
  output("kept", kept);
  return program;
}

TEST_CASE("an iteration reads the rows of the iteration before it of the sequences that live on, and what stands before the first") {
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    Random random(seed * 31);
    const LoD lod = LoD::from_lengths({{random.between(2, 9), random.between(2, 5), random.between(0, 3), random.between(2, 9)}});
    for (const bool sorted : {true, false}) {
      for (const bool skips_first : {false, true}) {
        const std::int64_t kept = skips_first ? SequenceOrder(lod, 0, sorted).live(0) : 4;
        const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod)},
                          {"boot", random_tensor(random, {4, 3})},
                          {"kept", random_tensor(random, {kept, 4})}};
        const std::int64_t fused = compare(beside_neighbours(sorted, skips_first), feeds);
        if (sorted) CHECK(fused == 1);  // in the caller's order, the rows that live on do not stand in front
      }
    }
  }
}

TEST_CASE("what a loop leaves out of rows in one place and looks at as it stands in another runs iteration by iteration") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2}, 1));
    const auto [steps, order] = unpack(x, 0, true);
    const Var n = steps.size();
    const build::TensorArray rows(n, "rows"), states(n, order, "states");
    Var step = 0;
    Var state = input("state", VarType(DType::f32, {DDim::unknown, 2}));
    auto loop = while_loop({step, state});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var now = steps.read(step);
      rows.write(step, state * 3.0f);  // those of sequences that have ended, too
      const Var next = shrink(state, now) + now;
      states.write(step, next);
      state.update(next);
      step.update(step + 1);
    }
    output("rows", rows.concat());
    output("y", pack(states, 0, order));
  }
  Random random(6);
  const LoD ragged = LoD::from_lengths({{3, 1, 5}});
  CHECK(compare(program, {{"x", LoDTensor(random_tensor(random, {9, 2}), ragged)}, {"state", random_tensor(random, {3, 2})}}) == 0);
}

/// Rows of sequences from the last iteration to the first, by a count that falls, without a state.
TEST_CASE("rows of iterations that grow are computed in one piece, and values of falling loops are kept") {
  Program program;
  Weights w(9);
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
    const auto [steps, order] = unpack(x, 0, true);
    const build::TensorArray outputs(steps.size(), order, "outputs");
    Var step = steps.size() - 1;
    auto loop = while_loop({step});
    {
      auto frame = loop.frame();
      loop.break_if(less(step, constant(0)));
      const Var now = steps.read(step);
      const Var a = call1("tanh", {matmul(now, w({3, 5}))}, {}, "a");
      outputs.write(step, matmul(softmax(a), w({5, 2})));
      step.update(step - 1);
    }
    output("y", pack(outputs, 0, order));
    output("step", step);
  }
  Random random(3);
  for (const std::vector<std::int64_t>& lengths :
       std::vector<std::vector<std::int64_t>>{{3, 0, 7, 1}, {4, 4, 4}, std::vector<std::int64_t>(150, 2)}) {
    const LoD lod = LoD::from_lengths({lengths});
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod)}};
    CHECK(compare(program, feeds) == 1);
    Program kept = program;
    const std::vector<KeptValue> values = keep_values(kept, bodies(kept)[0], {"a"});
    {
      const Guard guard(kept);
      const auto unpacked =
          std::find_if(kept.block(0).ops.begin(), kept.block(0).ops.end(), [](const Op& op) { return op.type == "unpack"; });
      output("a", pack(ArrayVar::of(Var::of(values[0].array)), 0, Order(Var::of(unpacked->outputs[1]))));
    }
    check(kept);
    CHECK(compare(kept, feeds) == 1);
  }
}

/// Iterations write an array that nobody reads, from slot `first` on. `before`: what else is written, in front of the loop; `behind`: behind it.
Program writes_unread(std::int64_t size, std::int64_t first, std::int64_t by, std::optional<std::int64_t> before = std::nullopt,
                      std::optional<std::int64_t> behind = std::nullopt) {
  Program program;
  const Guard guard(program);
  const Var n = input("n", VarType(DType::i64, {}));
  const Var x = constant(Tensor::from<float>({1, 2}).reshape({1, 2}));
  const ArrayVar unread(constant(size), "unread");
  if (before) unread.write(constant(*before), x);
  Var step = 0;
  Var state = x * 1.0f;
  auto loop = while_loop({step, state});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const Var next = tanh(state + x);
    unread.write(step * by + first, next);
    state.update(next);
    step.update(step + 1);
  }
  if (behind) unread.write(constant(*behind), x);
  output("state", state);
  return program;
}

/// The error that a program ends with, without the op: of two ops that write a slot, the later one fails.
std::string failure(const Program& program, const RunOptions& options) {
  try {
    static_cast<void>(on_cpu(program, {{"n", Tensor::scalar<std::int64_t>(3)}}, options));
  } catch (const Error& error) {
    const std::string what = error.what();
    return what.substr(0, what.find(" (op "));
  }
  return {};
}

TEST_CASE("a write that fails ends its run with the same error in one piece and iteration by iteration, whether or not its array is read") {
  const std::vector<std::pair<Program, std::string>> cases{{writes_unread(2, 0, 1), "found 2"},      {writes_unread(8, -1, 1), "found -1"},
                                                           {writes_unread(8, 7, 1), "found 8"},      {writes_unread(3, 1, -1), "found -1"},
                                                           {writes_unread(5, 0, 3), "found 6"},      {writes_unread(3, 0, 1, 1), "slot 1"},
                                                           {writes_unread(3, 0, 1, {}, 2), "slot 2"}};
  for (const auto& [program, said] : cases) {
    INFO(said);
    CHECK(reason(program) == "");
    const std::string wanted = failure(program, interpreted());
    CHECK(wanted.find(said) != std::string::npos);
    CHECK(failure(program, {}) == wanted);
  }
  for (const Program& program : {writes_unread(3, 0, 1), writes_unread(4, 3, -1, 0), writes_unread(9, 1, 2, {}, 0)})
    CHECK(compare(program, {{"n", Tensor::scalar<std::int64_t>(3)}}) == 1);
}

TEST_CASE("an array that nobody reads stays unwritten where every iteration is known to write a slot of its own") {
  const auto writes = [](bool falls, std::int64_t room) {
    Program program;
    const Guard guard(program);
    const ArrayVar steps = ArrayVar::unstack(input("x", VarType(DType::f32, {DDim::unknown, 2, 2})));
    const Var n = steps.size();
    const ArrayVar unread(n + room, "unread");
    unread.write(falls ? n : Var(0), constant(make_darray(DDim{2, 2}, 0.0f)));
    Var step = falls ? n - 1 : Var(1);
    Var state = constant(make_darray(DDim{2, 2}, 0.0f));
    auto loop = while_loop({step, state});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, falls ? Var(-1) : n + 1));
      const Var next = tanh(steps.read(falls ? step : step - 1) + state);
      unread.write(step, next);
      state.update(next);
      step.update(falls ? step - 1 : step + 1);
    }
    output("state", state);
    const std::vector<Op>& ops = program.block(0).ops;
    const auto found = std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.type == "while"; });
    return find_loop_form(program, 0, *found).outputs.size();
  };
  CHECK(writes(false, 1) == 0);
  CHECK(writes(true, 1) == 0);
  CHECK(writes(false, 0) == 1);
}

TEST_CASE("a count by the least integer is no count of iterations") {
  Program program;
  const Guard guard(program);
  Var step = 0;
  Var state = constant(make_darray(DDim{2, 2}, 0.0f));
  auto loop = while_loop({step, state});
  {
    auto frame = loop.frame();
    loop.break_if(not_equal(step, constant(0)));
    state.update(tanh(state));
    step.update(step + constant(std::numeric_limits<std::int64_t>::min()));
  }
  output("state", state);
  CHECK(reason(program) != "");
}

TEST_CASE("slots that no count of iterations numbers, and counts that never come to an end, are said and run iteration by iteration") {
  const auto said = [](const std::function<void(WhileLoop&, const ArrayVar&, const ArrayVar&, const Var&, const Var&)>& body) {
    Program program;
    const Guard guard(program);
    const ArrayVar steps = ArrayVar::unstack(input("x", VarType(DType::f32, {DDim::unknown, 2, 2})));
    const Var n = steps.size();
    const ArrayVar outputs = ArrayVar::typed(n, VarType(DType::f32, {DDim::unknown, 2}), "outputs");
    Var step = 0;
    auto loop = while_loop({step});
    {
      auto frame = loop.frame();
      body(loop, steps, outputs, step, n);
      step.update(step + 1);
    }
    return reason(program);
  };
  CHECK(said([](WhileLoop& loop, const ArrayVar& steps, const ArrayVar& outputs, const Var& step, const Var& n) {
          loop.break_if(equal(step, n));
          outputs.write(step, steps.read(step * step));
        }).find("a count of iterations") != std::string::npos);
  CHECK(said([](WhileLoop& loop, const ArrayVar& steps, const ArrayVar& outputs, const Var& step, const Var& n) {
          loop.break_if(less(step, n));
          outputs.write(step, steps.read(step));
        }).find("looks at something else than a number of iterations") != std::string::npos);
  CHECK(said([](WhileLoop& loop, const ArrayVar&, const ArrayVar& outputs, const Var& step, const Var& n) {
          loop.break_if(equal(step, n));
          outputs.write(step, outputs.read(n - 1 - step) * 2.0f);
        }).find("reads a slot that another count numbers") != std::string::npos);
}

}  // namespace
