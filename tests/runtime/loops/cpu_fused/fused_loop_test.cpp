// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/thread_executor.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/conv_parts.h"
#include "support/program_runs.h"
#include "support/random.h"
#include "support/random_lod.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

TEST_CASE("the built-in layers fuse, in both directions, stacked, ragged and dense") {
  Random random(3);
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) { return random_tensor(random, {rows, columns}); };
  for (const bool dense : {false, true}) {
    Program program;
    {
      const Guard guard(program);
      const Var x = dense ? input("x", VarType(DType::f32, {DDim::unknown, 3, 4})) : input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
      std::vector<layers::LstmWeights> lstm;
      for (const std::int64_t c : {4, 4, 12, 12}) lstm.push_back({matrix(c, 24), matrix(6, 24), random_tensor(random, {24}), {}, {}});
      layers::LstmOptions options;
      options.direction = layers::Direction::bidirectional;
      const Var y = layers::lstm({x}, lstm, options).y;
      for (const auto reset : {layers::GruReset::after, layers::GruReset::before}) {
        layers::GruOptions gru;
        gru.reset = reset;
        gru.name = reset == layers::GruReset::after ? "after" : "before";
        output(gru.name,
               layers::gru({y}, {layers::gru_from_onnx(random_tensor(random, {1, 15, 12}), random_tensor(random, {1, 15, 5}))}, gru).y);
      }
    }
    const LoD lod = LoD::from_lengths({{3, 0, 5, 1}});
    const Feeds feeds =
        dense ? Feeds{{"x", random_tensor(random, {7, 3, 4})}} : Feeds{{"x", LoDTensor(random_tensor(random, {9, 4}), lod)}};
    CHECK(compare(program, feeds) == 6);
  }
}

/// The canonical listing, with weights that are fed.
Program listing(bool sorted) {
  Program program;
  program.set_title("listing");
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
  const Var boot = input("boot", VarType(DType::f32, {DDim::unknown, 4}));
  const Var u = input("U", VarType(DType::f32, {4, 4}));
  const Var w = input("W", VarType(DType::f32, {3, 4}));
  const auto [steps, order] = unpack(x, 0, sorted);
  const Var n = steps.size();
  const build::TensorArray states(n, order, "states");
  const build::TensorArray outputs(n, order, "outputs");
  Var step = 0;
  auto loop = while_loop({step});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const Var now = steps.read(step);
    const Var before = shrink(states.read(step - 1, boot), now);
    const Var state = sigmoid(matmul(before, u * 0.5f) + matmul(now, w));
    states.write(step, state);
    outputs.write(step, state, share);
    step.update(step + 1);
  }
  output("y", pack(outputs, 0, order));
  output("step", step);
  return program;
}

TEST_CASE("the canonical listing runs in one piece, sorted and in the caller's order, with weights that a run brings") {
  Random random(8);
  const LoD lod = LoD::from_lengths({{3, 6, 1}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {10, 3}), lod)},
                    {"boot", random_tensor(random, {3, 4})},
                    {"U", random_tensor(random, {4, 4})},
                    {"W", random_tensor(random, {3, 4})}};
  for (const bool sorted : {true, false}) CHECK(compare(listing(sorted), feeds) == 1);
}

TEST_CASE("what inspect prints of the listing is one product ahead of the iterations and one fused loop") {
  const Program program = listing(true);
  const Block& block = program.block(0);
  for (const Op& op : block.ops) {
    if (op.type != "while") continue;
    const std::string text = FusedLoop(program, 0, op).to_string();
    CHECK(text.find("backend: fused") != std::string::npos);
    CHECK(text.find("before them: 1 ops over rows, 1 of them products") != std::string::npos);
    CHECK(text.find("once: 1 ops") != std::string::npos);
    return;
  }
  FAIL("no loop");
}

TEST_CASE("a loop reads rows that stand apart, in parts and beside rows that its iterations read ahead, with the bits of the interpreter") {
  Random random(11);
  for (const std::int64_t width : {3, 20}) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, width}, 1));
      const Tensor weight = random_tensor(random, {width, width});
      DynamicRNN forward;
      {
        const auto block = forward.block();
        const Var step = forward.step_input(x), h = forward.memory(DType::f32, {width});
        const Var next = tanh(step + matmul(h, parameter("r", weight)));
        forward.update_memory(h, next);
        forward.output(next);
        forward.output(next * step);
      }
      DynamicRNN back({.reverse = true});
      {
        const auto block = back.block();
        const Var step = back.step_input(x), h = back.memory(DType::f32, {width});
        const auto turned = [&](std::size_t output) {
          const BlockGuard outside(Guard::current(), 0);
          return reorder_steps(forward.output_slots(output), forward.order(), back.order());
        };
        // The product of the second one waits for no state.
        const Var next = tanh(step + h * back.step_slot(turned(0)) + matmul(back.step_slot(turned(1)), parameter("w", weight)));
        back.update_memory(h, next);
        back.output(next);
      }
      output("y", back.outputs().at(0));
    }
    for (const LoD::Level& lengths :
         {LoD::Level{3, 0, 5, 1}, LoD::Level{2, 2}, LoD::Level(3, 9), LoD::Level(70, 2), LoD::Level{4, 1, 1, 7}}) {
      const LoD lod = LoD::from_lengths({lengths});
      CAPTURE(lod.to_string());
      CHECK(compare(program, {{"x", LoDTensor(random_tensor(random, {lod.rows(), width}), lod)}}) == 2);
    }
  }
}

TEST_CASE("loops that do not fit say why and run iteration by iteration") {
  const auto reason = [](const std::function<Var(const Var& step, const Var& n, const Var& x)>& body) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2}));
      const Var n = input("n", VarType(DType::i64, {}));
      Var step = 0;
      Var state = x;
      auto loop = while_loop({step, state});
      {
        auto frame = loop.frame();
        loop.break_if(equal(step, n));
        state.update(body(step, n, state));
        step.update(step + 1);
      }
      output("y", state);
    }
    for (const Op& op : program.block(0).ops) {
      if (op.type != "while") continue;
      const Feeds feeds{{"x", Tensor::from<float>({1, 2, 3, 4}, {2, 2})}, {"n", Tensor::scalar<std::int64_t>(3)}};
      CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, interpreted())));
      try {
        FusedLoop(program, 0, op);
      } catch (const UnsupportedError& error) {
        return std::string(error.what());
      }
    }
    return std::string();
  };
  CHECK(reason([](const Var&, const Var&, const Var& x) { return sigmoid(x); }).empty());
  CHECK(reason([](const Var&, const Var&, const Var& x) { return call1("cumsum", {x}, {{"axis", std::int64_t{0}}}); }).find("cumsum") !=
        std::string::npos);
  CHECK(reason([](const Var&, const Var&, const Var& x) { return reduce(x, "sum", {0}, true) + x; }).find("gives no rows") !=
        std::string::npos);
  CHECK(reason([](const Var& step, const Var&, const Var& x) { return x * cast(step, DType::f32); }).find("a count of iterations") !=
        std::string::npos);
  CHECK(reason([](const Var&, const Var&, const Var& x) { return matmul(x, x); }).find("no matrix") != std::string::npos);
  CHECK(reason([](const Var&, const Var&, const Var& x) { return cast(cast(x, DType::f64), DType::f32); }).find("f64") !=
        std::string::npos);
}

TEST_CASE("a loop that writes what is the same in each iteration, or takes it as its next state, has the bits of the interpreter") {
  for (const bool as_state : {false, true}) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {3})), a = input("a", VarType(DType::f32, {3})),
                b = input("b", VarType(DType::f32, {3}));
      const Var n = input("n", VarType(DType::i64, {}));
      const build::TensorArray held(n, "held"), more(n, "more"), sums(n, "sums");
      Var step = 0;
      Var state = x, other = x * 0.5f;
      auto loop = while_loop({step, state, other});
      {
        auto frame = loop.frame();
        loop.break_if(equal(step, n));
        const Var same = maximum(a, b);
        const Var sum = state + other;
        if (!as_state) held.write(step, same);
        if (!as_state) more.write(step, sigmoid(same));
        sums.write(step, sum);
        state.update(sum);
        if (as_state) other.update(same);
        step.update(step + 1);
      }
      if (!as_state) output("held", held.stack());
      if (!as_state) output("more", more.stack());
      output("sums", sums.stack());
      output("state", state);
    }
    const Feeds feeds{{"x", Tensor::from<float>({1, 2, 3})},
                      {"a", Tensor::from<float>({-1, 5, 0})},
                      {"b", Tensor::from<float>({4, 2, -3})},
                      {"n", Tensor::scalar<std::int64_t>(4)}};
    CHECK(bits(on_cpu(program, feeds)) == bits(on_cpu(program, feeds, interpreted())));
  }
}

TEST_CASE("a decoder that looks at the memory of its one sequence runs in one piece") {
  Random random(12);
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1, 5})), memory = input("memory", VarType(DType::f32, {1, 7, 5}));
    const Var w = build::parameter("w", random_tensor(random, {5, 5})), v = build::parameter("v", random_tensor(random, {5, 1}));
    const build::TensorArray steps = build::TensorArray::unstack(x);
    const Var n = steps.size();
    const build::TensorArray outputs(n, "outputs");
    Var step = 0, state = constant(random_tensor(random, {1, 5}));
    auto loop = while_loop({step, state});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var scores = matmul(tanh(call1("unsqueeze", {matmul(state, w)}, {{"axes", std::vector<std::int64_t>{1}}}) + memory), v);
      const Var seen =
          call1("softmax", {call1("transpose", {scores}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}})}, {{"axis", std::int64_t{-1}}});
      const Var context = call1("squeeze", {matmul(seen, memory)}, {{"axes", std::vector<std::int64_t>{1}}});
      state.update(tanh(context + steps.read(step)));
      outputs.write(step, state, share);
      step.update(step + 1);
    }
    output("y", outputs.stack());
  }
  CHECK(compare(program, {{"x", random_tensor(random, {9, 1, 5})}, {"memory", random_tensor(random, {1, 7, 5})}}) == 1);
}

/// y[t] and the last state of a loop over slots of `slot`: state = body(state, x[t]).
Program slot_loop(const DDim& slot, const DDim& state, const std::function<Var(const Var& state, const Var& x)>& body) {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, slot.inserted(0, DDim::unknown))), start = input("start", VarType(DType::f32, state));
  const build::TensorArray steps = build::TensorArray::unstack(x);
  const Var n = steps.size();
  const build::TensorArray outputs(n, "outputs");
  Var step = 0, carried = start;
  auto loop = while_loop({step, carried});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    carried.update(body(carried, steps.read(step)));
    outputs.write(step, carried, share);
    step.update(step + 1);
  }
  output("y", outputs.stack());
  output("last", carried);
  return program;
}

TEST_CASE("slots without an axis for sequences run in one piece: vectors, matrices, scalars") {
  Random random(31);
  const auto of = [&](const DDim& dims) { return build::parameter("w", random_tensor(random, dims)); };
  const auto fuses = [&](const DDim& slot, const DDim& state, const std::function<Var(const Var& state, const Var& x)>& body) {
    const Program program = slot_loop(slot, state, body);
    for (const std::int64_t steps : {1, 2, 9}) {
      const Feeds feeds{{"x", random_tensor(random, slot.inserted(0, steps))}, {"start", random_tensor(random, state)}};
      CHECK(compare(program, feeds) == 1);
    }
    const Feeds none{{"x", random_tensor(random, slot.inserted(0, 0))}, {"start", random_tensor(random, state)}};
    CHECK(bits(on_cpu(program, none)) == bits(on_cpu(program, none, interpreted())));
  };
  fuses({}, {}, [](const Var& state, const Var& x) { return tanh(state * 0.5f + x); });
  fuses({3}, {5}, [&](const Var& state, const Var& x) { return tanh(matmul(state, of({5, 5})) + matmul(x, of({3, 5}))); });
  fuses({3}, {5}, [&](const Var& state, const Var& x) { return tanh(matmul(of({5, 5}), state) + matmul(of({5, 3}), x)); });
  fuses({4}, {4}, [](const Var& state, const Var& x) { return reduce(state * x, "sum", {0}, true) + softmax(x - state, 0); });
  fuses({2, 3}, {3, 2},
        [](const Var& state, const Var& x) { return tanh(state + call1("transpose", {x}, {{"perm", std::vector<std::int64_t>{1, 0}}})); });
  fuses({4}, {4, 4}, [](const Var& state, const Var& x) {  // fast weights: an outer product
    const Var column = call1("unsqueeze", {x}, {{"axes", std::vector<std::int64_t>{1}}});
    return state * 0.9f + matmul(column, call1("unsqueeze", {x}, {{"axes", std::vector<std::int64_t>{0}}}));
  });
  fuses({3, 3}, {3, 3}, [](const Var& state, const Var& x) { return tanh(matmul(state, x)); });
}

TEST_CASE("slots of integers are numbers of a fused loop; a run with an integer beyond 2^20 is left to the interpreter") {
  for (const DType dtype : {DType::i64, DType::i32}) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1, 4})), at = input("at", VarType(dtype, {DDim::unknown}));
      const build::TensorArray steps = build::TensorArray::unstack(x), places = build::TensorArray::unstack(at);
      const Var n = steps.size();
      const auto integers = [&](const std::vector<std::int64_t>& values) {
        return cast(constant(Tensor::from(values, {static_cast<std::int64_t>(values.size())})), dtype);
      };
      const build::TensorArray outputs(n, "outputs");
      Var step = 0, state = constant(Tensor::from<float>({1, 2, 3, 4}, {1, 4}));
      auto loop = while_loop({step, state});
      {
        auto frame = loop.frame();
        loop.break_if(equal(step, n));
        const Var place = places.read(step);
        const Var due = equal(call1("mod", {place - integers({1}), integers({1, 2, -3, 5})}), integers({0}));
        const Var signs = cast(call1("neg", {place * integers({3})}), DType::f32);  // 0 is no -0
        state.update(where(due, tanh(state + steps.read(step)), state) + 1.0f / (signs * 0.25f + 0.125f));
        outputs.write(step, state, share);
        step.update(step + 1);
      }
      output("y", outputs.stack());
    }
    Random random(5);
    const auto feeds = [&](const std::vector<std::int64_t>& at) {
      const auto count = static_cast<std::int64_t>(at.size());
      Tensor given = Tensor::from(at, {count});
      if (dtype == DType::i32) given = Tensor::from(std::vector<std::int32_t>(at.begin(), at.end()), {count});
      return Feeds{{"x", random_tensor(random, {count, 1, 4})}, {"at", given}};
    };
    CHECK(compare(program, feeds({0, 1, 2, 3, -4, 5, 1 << 20})) == 1);
    CHECK(compare(program, feeds({0, 1, (1 << 20) + 1})) == 0);
  }
}

TEST_CASE("an iteration over f64 whose part ahead of the iterations sees integers or truth alone has the bits of the interpreter") {
  for (const bool truth : {false, true}) {
    Program program;
    {
      const Guard guard(program);
      const Var k = input("k", VarType(truth ? DType::boolean : DType::i64, {DDim::unknown, 1}, 1));
      const Var y = input("y", VarType(DType::f64, {DDim::unknown, 1}, 1));
      DynamicRNN rnn;
      {
        const auto block = rnn.block();
        const Var now = rnn.step_input(k), row = rnn.step_input(y), h = rnn.memory(DType::f64, {1});
        const Var next = where(truth ? call1("logical_not", {now}) : greater(now, constant(2)), h + row, h - row);
        rnn.update_memory(h, next);
        rnn.output(next);
      }
      output("h", rnn.outputs().at(0));
    }
    const LoD lod = LoD::from_lengths({{4, 2}});
    const Tensor k = truth ? Tensor::from<bool>({false, true, true, false, true, false}, {6, 1})
                           : Tensor::from(std::vector<std::int64_t>{0, 1, 3, 4, 5, 2}, {6, 1});
    const Tensor y = Tensor::from(std::vector<double>{1, 10, 100, 1000, 3, 7}, {6, 1});
    CHECK(compare(program, {{"k", LoDTensor(k, lod)}, {"y", LoDTensor(y, lod)}}) == 1);
  }
}

TEST_CASE("a state that is handed on as it is, and read without rows that left, keeps them for its reader") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1}, 1));
    Var kept = input("kept", VarType(DType::f32, {DDim::unknown, 1}));
    const auto [steps, order] = unpack(x, 0, true);
    const Var n = steps.size();
    const build::TensorArray outputs(n, order, "outputs");
    Var step = 0;
    auto loop = while_loop({step, kept});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var now = steps.read(step);
      outputs.write(step, now + shrink(kept, now));
      step.update(step + 1);
    }
    output("y", pack(outputs, 0, order));
    output("kept", kept);
  }
  const LoD lod = LoD::from_lengths({{1, 2, 2}});
  const Tensor x = Tensor::from(std::vector<float>(5, 0.0f), {5, 1});
  CHECK(compare(program, {{"x", LoDTensor(x, lod)}, {"kept", Tensor::from(std::vector<float>{1, 2, 3}, {3, 1})}}) == 0);
}

TEST_CASE("large states are read where they lie and handed on without a copy, and what a run began with keeps its bits") {
  Random random(9);
  constexpr std::int64_t width = 20000;  // 80 kB a row
  const CellCase cell{"large", 1, {width, width, 3}, [](const Var& x, const std::vector<Var>& states) {
                        const Var next = states[0] * 0.5 + x;
                        return CellStep{slice(next, 1, 0, 2), {next, states[0] + states[1], states[2] + x}};
                      }};
  for (const bool boots : {false, true})
    for (const auto& lengths : std::vector<std::vector<std::int64_t>>{{1}, {4}, {3, 0, 5, 1}, {0, 2}, {0}}) {
      CAPTURE(boots);
      CAPTURE(lengths.size());
      const Program program = over_rows(cell, boots, false);
      const LoD lod = LoD::from_lengths({lengths});
      const auto count = static_cast<std::int64_t>(lengths.size());
      Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 1}), lod)}};
      std::vector<Tensor> given;
      for (std::size_t i = 0; boots && i < cell.widths.size(); ++i) {
        given.push_back(random_tensor(random, {count, cell.widths[i]}));
        feeds["boot" + std::to_string(i)] = given.back();
      }
      std::vector<std::vector<float>> before;
      for (const Tensor& each : given) before.push_back(each.to_vector<float>());
      compare(program, feeds);
      const RunResult once = on_cpu(program, feeds), again = on_cpu(program, feeds);
      CHECK(bits(once) == bits(again));
      for (std::size_t i = 0; i < given.size(); ++i) {
        CHECK(given[i].to_vector<float>() == before[i]);
        CHECK(!once["last" + std::to_string(i)].tensor().shares_storage_with(given[i]));
      }
      CHECK(!once["last0"].tensor().shares_storage_with(once["last1"].tensor()));
    }
}

TEST_CASE("a write with other rows than its slot takes fails in every backend, though nothing reads the array") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1}, 1));
    const auto [steps, order] = unpack(x, 0, true);
    const Var n = steps.size();
    const build::TensorArray unread(n, order, "unread");
    Var step = 0;
    Var h = input("h", VarType(DType::f32, {DDim::unknown, 1}));
    auto loop = while_loop({step, h});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var now = steps.read(step);
      h.update(shrink(h, now) + now);
      unread.write(n - 1 - step, now);
      step.update(step + 1);
    }
    output("h", h);
  }
  const LoD lod = LoD::from_lengths({{2, 1}});
  const Feeds feeds{{"x", LoDTensor(Tensor::from(std::vector<float>(3, 1.0f), {3, 1}), lod)},
                    {"h", Tensor::from(std::vector<float>(2, 0.0f), {2, 1})}};
  for (const Backend backend : {Backend::interpreted, Backend::automatic}) {
    RunOptions options;
    options.backend = backend;
    CHECK_THROWS_AS(on_cpu(program, feeds, options), ShapeError);
  }
}

TEST_CASE("rows that are shrunk to those of an earlier step fail in every backend, also where all steps have as many") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1}, 1));
    const auto [steps, order] = unpack(x, 0, true);
    const Var n = steps.size();
    const build::TensorArray outputs(n, order, "outputs");
    Var step = 0;
    auto loop = while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var now = steps.read(step);
      outputs.write(step, now + shrink(steps.read(n - 1 - step), now));
      step.update(step + 1);
    }
    output("y", pack(outputs, 0, order));
  }
  const LoD lod = LoD::from_lengths({{2, 2}});
  const Feeds feeds{{"x", LoDTensor(Tensor::from(std::vector<float>(4, 1.0f), {4, 1}), lod)}};
  for (const Backend backend : {Backend::interpreted, Backend::automatic}) {
    RunOptions options;
    options.backend = backend;
    CHECK_THROWS_AS(on_cpu(program, feeds, options), ArgumentError);
  }
}

TEST_CASE("integers that one part of an iteration hands on to another stay exact") {
  const auto fused = [](std::int64_t factor) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1, 4})), at = input("at", VarType(DType::i64, {DDim::unknown}));
      const build::TensorArray steps = build::TensorArray::unstack(x), places = build::TensorArray::unstack(at);
      const Var n = steps.size();
      const build::TensorArray outputs(n, "outputs");
      Var step = 0, state = constant(Tensor::from<float>({1, 2, 3, 4}, {1, 4}));
      auto loop = while_loop({step, state});
      {
        auto frame = loop.frame();
        loop.break_if(equal(step, n));
        const auto integer = [](std::int64_t value) { return constant(Tensor::from<std::int64_t>({value}, {1})); };
        const Var known = places.read(step) * integer(factor);  // before the iterations
        const Var best = call1("argmax", {state}, {{"axis", std::int64_t{1}}});
        const Var sum = (known + best) * integer(7) + integer(1);
        state.update(tanh(state + steps.read(step)) + cast(sum, DType::f32));
        outputs.write(step, state, share);
        step.update(step + 1);
      }
      output("y", outputs.stack());
    }
    Random random(9);
    std::vector<std::int64_t> given;
    for (std::int64_t i = 0; i < 40; ++i) given.push_back((std::int64_t{1} << 20) - i);
    return compare(program, {{"x", random_tensor(random, {40, 1, 4})}, {"at", Tensor::from(given, {40})}});
  };
  CHECK(fused(1) == 1);
  CHECK(fused(7) == 0);
}

TEST_CASE("places of extremes, one-hot rows of them and rows of a table at them run in one piece, with ties and NaN") {
  Random random(6);
  const auto table = random_tensor(random, {4, 3});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* const kind : {"argmax", "argmin"})
    for (const bool last : {false, true}) {
      const Program program = slot_loop({2, 4}, {2, 4}, [&](const Var& state, const Var& x) {
        const Var places =
            call1(kind, {x + state * 0.0f}, {{"axis", std::int64_t{-1}}, {"keepdims", false}, {"select_last", last}});  // [2]
        const Var across = call1(kind, {x}, {{"axis", std::int64_t{0}}, {"keepdims", true}, {"select_last", last}});    // [1, 4]
        const Var hot = call1("one_hot", {places - constant(2), constant(4), constant(Tensor::from<float>({-0.5F, 2.5F}))});
        const Var rows = embedding(constant(table), places);  // [2, 3]
        return hot + concat({rows, cast(reshape(places, {2, 1}), DType::f32)}, 1) + cast(across, DType::f32);
      });
      const Tensor x = Tensor::from<float>({1, 3, 3, 0, nan, 2, nan, 5, 0, 0, 0, 0, -1, 7, -1, 7, 4, 3, 2, 1, 1, 2, 3, 4}, {3, 2, 4});
      CHECK(compare(program, {{"x", x}, {"start", random_tensor(random, {2, 4})}}) == 1);
    }
}

TEST_CASE("convolutions over the pictures of a state, with any strides, dilations and borders, run in one piece") {
  Random random(33);
  for (const std::int64_t batch : {1, 2}) {
    for (const std::int64_t kind : {0, 1, 2}) {
      ConvParts parts{.batch = batch, .height = 5, .width = 6, .before = 1, .after = 1, .width_before = 1, .width_after = 1};
      if (kind == 1) parts = {.batch = batch, .height = 5, .width = 6, .dilation = 2, .before = 3, .after = 1, .width_before = 2};
      if (kind == 2) parts = {.batch = batch, .height = 5, .width = 6};
      const std::int64_t taps = kind == 2 ? 1 : 3;
      const Tensor w = random_tensor(random, {4, 4, taps, taps}), b = random_tensor(random, {4});
      const DDim picture{batch, 4, 5, 6};
      const Program program = slot_loop(picture, picture, [&](const Var& state, const Var& x) { return tanh(parts(state, w, b) + x); });
      for (const std::int64_t steps : {1, 7}) {
        const Feeds feeds{{"x", random_tensor(random, picture.inserted(0, steps))}, {"start", random_tensor(random, picture)}};
        CHECK(compare(program, feeds) == 1);
      }
    }
    // Pictures that become smaller, with strides along both axes, and are folded: 7 x 8 to 3 x 4.
    const ConvParts halves{.batch = batch, .height = 7, .width = 8, .stride = 2, .width_stride = 2, .width_before = 1};
    const Tensor w = random_tensor(random, {2, 3, 3, 2}), b = random_tensor(random, {2});
    const Program program =
        slot_loop({batch, 3, 7, 8}, {batch, 2, 3, 4}, [&](const Var& state, const Var& x) { return tanh(halves(x, w, b) + state); });
    const Feeds feeds{{"x", random_tensor(random, {5, batch, 3, 7, 8})}, {"start", random_tensor(random, {batch, 2, 3, 4})}};
    CHECK(compare(program, feeds) == 1);
  }
}

TEST_CASE("convolutions of any number of taps see the same at few places of a row and at many, in one piece") {
  Random random(34);
  for (const std::int64_t width : {1, 2, 8, 9, 20})
    for (const std::int64_t taps : {1, 2, 3, 4, 5, 7}) {
      const std::int64_t before = (taps - 1) / 2;
      const ConvParts parts{
          .batch = 1, .height = 2, .width = width, .before = 1, .after = 1, .width_before = before, .width_after = taps - 1 - before};
      const Tensor w = random_tensor(random, {3, 3, 3, taps}), b = random_tensor(random, {3});
      const DDim picture{1, 3, 2, width};
      const Program program = slot_loop(picture, picture, [&](const Var& state, const Var& x) { return tanh(parts(state, w, b) + x); });
      CAPTURE(width);
      CAPTURE(taps);
      CHECK(compare(program, {{"x", random_tensor(random, picture.inserted(0, 3))}, {"start", random_tensor(random, picture)}}) == 1);
    }
}

/// An op from outside that gives a tensor which it never wrote.
std::shared_ptr<const OpRegistry> with_forgetful_op() {
  auto registry = std::make_shared<OpRegistry>(*standard_ops());
  OpDef def;
  def.name = "forget";
  def.inputs = {"X"};
  def.outputs = {"Out"};
  def.infer = [](InferContext& context) { context.result(context.type(0)); };
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) { run.set(0, Tensor(run.tensor(0).dtype(), run.tensor(0).dims())); };
  };
  registry->add(std::move(def));
  return registry;
}

TEST_CASE("a state or a shared value that nothing ever wrote is the same error in every backend") {
  for (const bool is_state : {true, false}) {
    Program program(with_forgetful_op());
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, 3}));
      const build::TensorArray steps = build::TensorArray::unstack(x);
      const Var n = steps.size(), given = input("given", VarType(DType::f32, {DDim::unknown, 3})),
                row = input("row", VarType(DType::f32, {3}));
      const build::TensorArray outputs(n, "outputs");
      Var step = 0, carried = is_state ? call1("forget", {given}) : given;
      const Var shared = is_state ? row : call1("forget", {row});
      auto loop = while_loop({step, carried});
      {
        auto frame = loop.frame();
        loop.break_if(equal(step, n));
        carried.update(tanh(carried + steps.read(step) + shared));
        outputs.write(step, carried, share);
        step.update(step + 1);
      }
      output("y", outputs.stack());
    }
    Random random(38);
    const Feeds feeds{
        {"x", random_tensor(random, {4, 2, 3})}, {"given", random_tensor(random, {2, 3})}, {"row", random_tensor(random, {3})}};
    CHECK_THROWS_AS(on_cpu(program, feeds), UninitializedError);
    CHECK_THROWS_AS(on_cpu(program, feeds, interpreted()), UninitializedError);
  }
}

TEST_CASE("convolutions in groups, of few channels each and of more than a block of k, run in one piece") {
  struct Form {
    std::int64_t channels, units, group, taps, stride, dilation, before, after;
  };
  Random random(37);
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Form& form : {Form{21, 21, 21, 4, 1, 1, 0, 0}, Form{3, 6, 3, 3, 2, 2, 3, 1}, Form{8, 4, 2, 3, 1, 1, 1, 1},
                             Form{6, 10, 2, 200, 1, 1, 100, 100}}) {
      CAPTURE(form.channels);
      const std::int64_t width = 9, last = (form.taps - 1) * form.dilation;
      const std::int64_t places = (width + form.before + form.after - last - 1) / form.stride + 1;
      const Tensor w = random_tensor(random, {form.units, form.channels / form.group, form.taps}, 1, dtype);
      const Tensor b = random_tensor(random, {form.units}, 1, dtype);
      Program program;
      {
        const Guard guard(program);
        const Var x = input("x", VarType(dtype, {DDim::unknown, DDim::unknown, form.channels, width}));
        const build::TensorArray steps = build::TensorArray::unstack(x);
        const Var n = steps.size();
        const build::TensorArray outputs(n, "outputs");
        Var step = 0, carried = input("start", VarType(dtype, {DDim::unknown, form.units, places}));
        auto loop = while_loop({step, carried});
        {
          auto frame = loop.frame();
          loop.break_if(equal(step, n));
          const Var seen = conv1d(steps.read(step), parameter("w", w), parameter("b", b), form.stride, form.dilation,
                                  {form.before, form.after}, form.group);
          carried.update(tanh(carried + seen));
          outputs.write(step, carried, share);
          step.update(step + 1);
        }
        output("y", outputs.stack());
      }
      for (const std::int64_t batch : {1, 3})
        CHECK(compare(program, {{"x", random_tensor(random, {4, batch, form.channels, width}, 1, dtype)},
                                {"start", random_tensor(random, {batch, form.units, places}, 1, dtype)}}) == 1);
    }
  }
}

TEST_CASE("running sums along an axis of a row run in one piece, forwards and backwards, with and without an element itself") {
  Random random(35);
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const bool exclusive : {false, true}) {
      for (const std::int64_t axis : {1, 2, -1}) {
        Program program;
        {
          const Guard guard(program);
          const Var x = input("x", VarType(dtype, {DDim::unknown, DDim::unknown, 3, 4}));
          const build::TensorArray steps = build::TensorArray::unstack(x);
          const Var n = steps.size();
          const build::TensorArray outputs(n, "outputs");
          Var step = 0, carried = input("start", VarType(dtype, {DDim::unknown, 3, 4}));
          auto loop = while_loop({step, carried});
          {
            auto frame = loop.frame();
            loop.break_if(equal(step, n));
            carried.update(
                tanh(call1("cumsum", {carried + steps.read(step)}, {{"axis", axis}, {"exclusive", exclusive}, {"reverse", axis == 2}})));
            outputs.write(step, carried, share);
            step.update(step + 1);
          }
          output("y", outputs.stack());
        }
        CHECK(compare(program,
                      {{"x", random_tensor(random, {6, 2, 3, 4}, 1, dtype)}, {"start", random_tensor(random, {2, 3, 4}, 1, dtype)}}) == 1);
      }
    }
  }
}

TEST_CASE("folds of every kind but products run in one piece, along any axes of a row") {
  Random random(36);
  for (const char* kind : {"sum", "mean", "max", "min", "l1", "l2", "sum_square", "log_sum", "log_sum_exp"}) {
    CAPTURE(kind);
    for (const std::vector<std::int64_t>& axes : {std::vector<std::int64_t>{2}, {1}, {1, 2}}) {
      const DDim row{2, 3, 700};
      const Program program = slot_loop(row, row, [&](const Var& state, const Var& x) {
        const Var folded = reduce(exp(state * 0.25f) + x * x, kind, axes, true);
        return tanh(x - folded * 0.125f);
      });
      CHECK(compare(program, {{"x", random_tensor(random, row.inserted(0, 3))}, {"start", random_tensor(random, row)}}) == 1);
    }
  }
}

TEST_CASE("products of any view of a row have the rows of the view") {
  Random random(37);
  using Ints = std::vector<std::int64_t>;
  const auto cut = [](const Var& x, const Ints& starts, const Ints& ends, const Ints& axes, const Ints& steps) {
    return call1("slice", {x}, {{"starts", starts}, {"ends", ends}, {"axes", axes}, {"steps", steps}});
  };
  const auto turned = [](const Var& x, const Ints& perm) { return call1("transpose", {x}, {{"perm", perm}}); };
  for (const std::int64_t k : {1, 3}) {
    CAPTURE(k);
    const Tensor w = random_tensor(random, {k, 5});
    const auto check = [&](const DDim& slot, const DDim& made, const std::function<Var(const Var&)>& view) {
      const Program program =
          slot_loop(slot, made, [&](const Var& state, const Var& x) { return tanh(state * 0.5f + matmul(view(x), parameter("w", w))); });
      CHECK(compare(program, {{"x", random_tensor(random, slot.inserted(0, 4))}, {"start", random_tensor(random, made)}}) == 1);
    };
    check({2, 3, k}, {3, 2, 5}, [&](const Var& x) { return turned(x, {1, 0, 2}); });
    check({k, 3}, {3, 5}, [&](const Var& x) { return turned(x, {1, 0}); });
    check({4, 2, k + 1}, {4, 2, 5}, [&](const Var& x) { return cut(x, {1}, {k + 1}, {2}, {1}); });
    check({2, 2 * k + 2}, {2, 5}, [&](const Var& x) { return cut(x, {2}, {2 * k + 2}, {1}, {2}); });
    check({4, 3, k + 1}, {2, 2, 5}, [&](const Var& x) { return cut(x, {0, 1, 1}, {4, 3, k + 1}, {0, 1, 2}, {2, 1, 1}); });
  }
}

TEST_CASE("numbers around several axes of a row run in one piece") {
  Random random(34);
  const DDim picture{2, 3, 4, 5};
  const Program program = slot_loop(picture, {2, 3, 7, 9}, [&](const Var& state, const Var& x) {
    return state * 0.5f +
           call1("pad", {x},
                 {{"pads", std::vector<std::int64_t>{0, 0, 1, 0, 0, 0, 2, 4}}, {"mode", std::string("constant")}, {"value", -1.5}});
  });
  CHECK(compare(program, {{"x", random_tensor(random, {4, 2, 3, 4, 5})}, {"start", random_tensor(random, {2, 3, 7, 9})}}) == 1);
}

TEST_CASE("values that a loop computes stand between numbers, and beside each other, in one piece") {
  using Ints = std::vector<std::int64_t>;
  Random random(35);
  const auto padded = [](const Var& x) { return call1("pad", {x}, {{"pads", Ints{0, 1, 0, 2}}, {"mode", std::string("constant")}}); };
  const auto over = [](const auto& f) {
    return over_rows({"rows",
                      3,
                      {6},
                      [f](const Var& x, const std::vector<Var>& states) {
                        const Var next = states[0] * 0.5f + f(x);
                        return CellStep{next, {next}};
                      }},
                     true, false);
  };
  const Program programs[] = {over([&](const Var& x) { return padded(tanh(x)); }),
                              over([&](const Var& x) { return padded(tanh(x)) + concat({sigmoid(x), tanh(x) * x}, -1); }),
                              over([&](const Var& x) {
                                const Var u = tanh(x);
                                return concat({u, u * 2.0f}, -1) - padded(x * 3.0f);
                              })};
  for (const Program& program : programs)
    CHECK(compare(program, {{"x", LoDTensor(random_tensor(random, {9, 3}), LoD::from_lengths({{4, 0, 5}}))},
                            {"boot0", random_tensor(random, {3, 6})}}) == 1);
}

TEST_CASE("loops without an axis for sequences pass slots to each other, backwards too") {
  Random random(32);
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}));
    const build::TensorArray steps = build::TensorArray::unstack(x);
    const Var n = steps.size();
    const build::TensorArray first(n, "first"), second(n, "second"), sums(n, "sums");
    const Var boot = constant(Tensor::from<float>({1, 2, 3}));
    Var step = 0, other = 0, before = constant(Tensor::from<float>({3, 2, 1}));
    auto loop = while_loop({step, before});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var last = first.read(step - 1, boot);
      first.write(step, tanh(steps.read(step) + last - softmax(before, 0)));
      before.update(last);
      step.update(step + 1);
    }
    Var held = constant(Tensor::from<float>({0, 1, 0}));
    auto back = while_loop({other, held});
    {
      auto frame = back.frame();
      back.break_if(equal(other, n));
      const Var slot = first.read(n - 1 - other);
      held.update(held * reduce(slot, "mean", {0}, true) + slot);
      second.write(n - 1 - other, held, share);
      sums.write(n - 1 - other, reduce(held, "sum", {0}, false));
      other.update(other + 1);
    }
    output("first", first.stack());
    output("second", second.stack());
    output("sums", sums.stack());
    output("held", held);
  }
  for (const std::int64_t length : {1, 2, 7, 40}) CHECK(compare(program, {{"x", random_tensor(random, {length, 3})}}) == 2);
}

TEST_CASE("a loop whose iterations compute the boot of what they read runs iteration by iteration") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2}, 1)), boot = input("boot", VarType(DType::f32, {DDim::unknown, 2}));
    const auto [steps, order] = unpack(x, 0, true);
    const Var n = steps.size();
    const build::TensorArray states(n, order, "states");
    Var step = constant(0);
    auto loop = while_loop({step});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var in = steps.read(step);
      states.write(step, shrink(states.read(step - 1, boot * 2.0), in) + in);
      step.update(step + 1);
    }
    output("y", pack(states, 0, order));
  }
  const Feeds feeds{{"x", LoDTensor(Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 2}), LoD::from_lengths({{2, 1}}))},
                    {"boot", Tensor::from<float>({10, 20, 30, 40}).reshape({2, 2})}};
  const RunResult result = on_cpu(program, feeds);
  CHECK(result.fused_loops == 0);
  CHECK(result["y"].tensor().to_vector<float>() == std::vector<float>{21, 42, 24, 46, 65, 86});
}

TEST_CASE("a window of earlier states is carried") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2, 3}));
    const ArrayVar steps = ArrayVar::unstack(x);
    const Var n = steps.size();
    const ArrayVar states(n + 2, "states");
    states.write(0, constant(Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3})));
    states.write(1, constant(Tensor::from<float>({6, 5, 4, 3, 2, 1}, {2, 3})));
    Var step = 0;
    auto loop = while_loop({step});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      states.write(step + 2, tanh(steps.read(step) + states.read(step + 1) - states.read(step)));
      step.update(step + 1);
    }
    output("y", states.stack());
  }
  Random random(2);
  CHECK(compare(program, {{"x", random_tensor(random, {6, 2, 3})}}) == 1);
}

TEST_CASE("a run that is cancelled while a fused loop iterations ends soon") {
  for (const bool product : {true, false}) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {8, 64}));
      const Var n = input("n", VarType(DType::i64, {}));
      const Var w = parameter("w", Tensor::from(std::vector<float>(64 * 64, 0.01f), {64, 64}));
      Var step = 0;
      Var state = x;
      auto loop = while_loop({step, state});
      {
        auto frame = loop.frame();
        loop.break_if(equal(step, n));
        state.update(tanh(product ? matmul(state, w) : -state));
        step.update(step + 1);
      }
      output("y", state);
    }
    Random random(4);
    RunOptions options;
    options.deadline = std::chrono::milliseconds(20);
    const Feeds feeds{{"x", random_tensor(random, {8, 64})}, {"n", Tensor::scalar<std::int64_t>(100'000'000)}};
    ThreadExecutor executor(1);
    CHECK_THROWS_AS(start_run(executor, run(program, feeds, options), "a long loop").get(), DeadlineError);
  }
}

TEST_CASE("a loop that shrinks what its iteration computed is interpreted, since no order says whose rows those are") {
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1}, 1)), b = input("b", VarType(DType::f32, {DDim::unknown, 1}));
    const auto [steps, order] = unpack(x, 0, true);
    Var step = 0, h = identity(b);
    const ArrayVar out(Var(2), "out");
    {
      WhileLoop loop = while_loop({step, h});
      const auto frame = loop.frame();
      loop.break_if(equal(step, Var(2)));
      const Var now = steps.read(step), next = shrink(h * 2.0f, now) + now;
      h.update(next);
      out.write(step, next);
      step.update(step + 1);
    }
    output("first", out.read(Var(0)));
    output("last", h);
  }
  const Feeds feeds{{"x", LoDTensor(Tensor::from<float>({1, 2, 10, 20, 30, 40, 50}, {7, 1}), LoD::from_lengths({{2, 5}}))},
                    {"b", Tensor::from<float>({100, 1000}, {2, 1})}};
  CHECK(compare(program, feeds) == 0);
  CHECK(on_cpu(program, feeds)["first"].tensor().to_vector<float>() == std::vector<float>{2010, 201});
}

TEST_CASE("runs of one executable at once, on several threads, give the bits of each alone") {
  Random random(8);
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
    std::vector<layers::GruWeights> weights;
    for (const std::int64_t c : {4, 4, 12, 12})
      weights.push_back(
          {random_tensor(random, {c, 18}), random_tensor(random, {6, 18}), random_tensor(random, {18}), random_tensor(random, {18})});
    layers::GruOptions options;
    options.direction = layers::Direction::bidirectional;
    const layers::GruResult made = layers::gru({x}, weights, options);
    output("y", made.y);
    output("h", made.h[3]);
  }
  constexpr std::size_t count = 8;
  std::vector<Feeds> feeds;
  std::vector<std::string> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    const LoD lod = random_lod(random, 1, 60);
    feeds.push_back({{"x", LoDTensor(random_tensor(random, {lod.rows(), 4}), lod)}});
    wanted.push_back(bits(on_cpu(program, feeds.back(), interpreted())));
  }
  const Executable executable(program, make_cpu_device(2, 2));
  ThreadExecutor executor(3);
  for (int round = 0; round < 10; ++round) {
    std::vector<Running<RunResult>> running;
    for (const Feeds& fed : feeds) running.push_back(start_run(executor, run(executable, fed), "one of many"));
    running[static_cast<std::size_t>(round) % count].cancel();
    for (std::size_t i = 0; i < count; ++i) {
      try {
        const RunResult found = running[i].get();
        CHECK(bits(found) == wanted[i]);
      } catch (const CancelledError&) {
        CHECK(i == static_cast<std::size_t>(round) % count);
      }
    }
  }
}

TEST_CASE("a traced run shows its iterations, unless the fused backend is asked for by name") {
  Random random(8);
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {10, 3}), LoD::from_lengths({{3, 6, 1}}))},
                    {"boot", random_tensor(random, {3, 4})},
                    {"U", random_tensor(random, {4, 4})},
                    {"W", random_tensor(random, {3, 4})}};
  RunOptions kept;
  kept.keep_step_scopes = true;
  const RunResult result = on_cpu(listing(true), feeds, kept);
  CHECK(result.fused_loops == 0);
  CHECK(result.step_scopes().size() == 6);
}

}  // namespace
