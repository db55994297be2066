// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cpu_fused/wavefront.h>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/built.h"
#include "support/random_lod.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

RunResult on_threads(const Program& program, const Feeds& feeds, int threads) {
  return run_fifo(run(Executable(program, make_cpu_device(threads)), feeds));
}

/// The bits of the interpreted loops with one, two and three threads; gives how many ran side by side with two.
std::int64_t side_by_side(const Program& program, const Feeds& feeds) {
  const std::string wanted = bits(on_cpu(program, feeds, interpreted()));
  std::int64_t found = 0;
  for (const int threads : {1, 2, 3}) {
    INFO("threads ", threads);
    const RunResult result = on_threads(program, feeds, threads);
    CHECK(bits(result) == wanted);
    if (threads == 1) CHECK(result.loops_side_by_side == 0);
    if (threads == 2) found = result.loops_side_by_side;
    if (threads == 2 && found > 0) CHECK(on_threads(program, feeds, 1).fused_loops == result.fused_loops);
  }
  return found;
}

Var rows_of(std::int64_t width) { return input("x", VarType(DType::f32, {DDim::unknown, width}, 1)); }

Feeds rows(Random& random, const LoD& lod, std::int64_t width) {
  return {{"x", LoDTensor(random_tensor(random, {lod.rows(), width}), lod)}};
}

std::vector<layers::LstmWeights> lstm_weights(Random& random, const std::vector<std::int64_t>& inputs, std::int64_t h) {
  std::vector<layers::LstmWeights> made;
  for (const std::int64_t c : inputs)
    made.push_back({random_tensor(random, {c, 4 * h}), random_tensor(random, {h, 4 * h}), random_tensor(random, {4 * h}), {}, {}});
  return made;
}

std::size_t count(const Program& program, const std::string& type) {
  std::size_t found = 0;
  for (const Op& op : program.block(0).ops) found += op.type == type ? 1 : 0;
  return found;
}

TEST_CASE("the layers of a stack run side by side on threads, with the bits of one after the other") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    const auto layers = random.between(2, 5);
    const std::int64_t h = random.between(1, 20);
    std::vector<std::int64_t> widths(static_cast<std::size_t>(layers), h);
    widths[0] = 5;
    const auto weights = lstm_weights(random, widths, h);
    const Program program = built_program([&] {
      const layers::LstmResult made = layers::lstm({rows_of(5)}, weights);
      output("y", made.y);
      if (seed % 2 == 0) output("c", made.c.back());
    });
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = random.between(0, 6); i > 0; --i) lengths.push_back(random.between(0, 90));
    lengths.push_back(random.between(1, 200));
    CHECK(side_by_side(program, rows(random, LoD::from_lengths({lengths}), 5)) == layers);
  }
}

TEST_CASE("both directions of a layer run side by side, then those of the next") {
  Random random(2);
  const auto weights = lstm_weights(random, {4, 4, 12, 12}, 6);
  const Program program = built_program([&] {
    layers::LstmOptions options;
    options.direction = layers::Direction::bidirectional;
    output("y", layers::lstm({rows_of(4)}, weights, options).y);
  });
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{70}, {3, 0, 50, 1}, {0, 1}})
    CHECK(side_by_side(program, rows(random, LoD::from_lengths({lengths}), 4)) == 4);
}

TEST_CASE("layers of other cells do, and many rows are dealt to the threads instead") {
  Random random(3);
  const auto gru = [&](std::int64_t c) {
    return layers::gru_from_onnx(random_tensor(random, {1, 15, c}), random_tensor(random, {1, 15, 5}));
  };
  const std::vector<layers::GruWeights> weights{gru(4), gru(5), gru(5)};
  const Program program = built_program([&] { output("y", layers::gru({rows_of(4)}, weights).y); });
  CHECK(side_by_side(program, rows(random, LoD::from_lengths({{40, 7}}), 4)) == 3);
  CHECK(side_by_side(program, rows(random, LoD::from_lengths({std::vector<std::int64_t>(40, 5)}), 4)) == 0);
}

TEST_CASE("a few sequences of a wide layer share its products between two threads") {
  Random random(7);
  const std::int64_t h = 200;
  const auto weights = lstm_weights(random, {5}, h);
  const layers::GruWeights gru =
      layers::gru_from_onnx(random_tensor(random, {1, 3 * h, 5}, 0.1), random_tensor(random, {1, 3 * h, h}, 0.1));
  const Program programs[] = {built_program([&] { output("y", layers::lstm({rows_of(5)}, weights).y); }),
                              built_program([&] { output("y", layers::gru({rows_of(5)}, {gru}).y); })};
  for (const Program& program : programs)
    for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{30}, {9, 0, 20, 1}, {8, 8, 8, 8, 8}})
      CHECK(side_by_side(program, rows(random, LoD::from_lengths({lengths}), 5)) == 0);
}

/// Two loops by hand: the second takes what the first wrote at `step` and adds what it wrote `lag` iterations before, once there is such.
Program by_hand(bool waits_for_the_end) {
  return built_program([&] {
    const Var x = rows_of(4);
    const auto [steps, order] = unpack(x, 0, true);
    const Var n = steps.size();
    Weights w(5);
    const Var boot =
        call1("constant_rows", {order.var()}, {{"dtype", DType::f32}, {"shape", std::vector<std::int64_t>{4}}, {"value", 0.5}});
    const auto layer = [&](const ArrayVar& from, const Var& first, const std::string& name) {
      const ArrayVar states(n, order, name);
      Var step = constant(0);
      auto loop = while_loop({step});
      {
        const auto frame = loop.frame();
        loop.break_if(equal(step, n));
        const Var x_t = from.read(step);
        const Var before = shrink(states.read(step - 1, first), x_t);
        states.write(step, tanh(matmul(before, w({4, 4})) + matmul(x_t, w({4, 4}))));
        step.update(step + 1);
      }
      return states;
    };
    const ArrayVar lower = layer(steps, boot, "lower");
    const Var first = waits_for_the_end ? call1("last_rows", {lower.var(), order.var(), boot}) : boot;
    const ArrayVar upper = layer(lower, first, "upper");
    output("lower", pack(lower, 0, order));
    output("upper", pack(upper, 0, order));
  });
}

TEST_CASE("loops by hand, one of which reads the slots of the other, run side by side unless one needs the end of the other") {
  Random random(4);
  const Feeds feeds = rows(random, LoD::from_lengths({{60, 3, 59}}), 4);
  CHECK(side_by_side(by_hand(false), feeds) == 2);
  CHECK(side_by_side(by_hand(true), feeds) == 0);
  REQUIRE(Executable(by_hand(false)).loop_groups().size() == 1);
  CHECK(Executable(by_hand(false)).loop_groups()[0].size() == 2);
  CHECK(Executable(by_hand(true)).loop_groups().empty());
}

/// Two layers of `h` units over one row an iteration; the upper one reads the lower one's slots `ahead` of its own.
Program reads_ahead(std::int64_t h, std::int64_t ahead) {
  return built_program([&] {
    const ArrayVar steps = ArrayVar::unstack(input("x", VarType(DType::f32, {DDim::unknown, 1, h})));
    Weights w(6);
    const auto layer = [&](const ArrayVar& from, const Var& n, std::int64_t offset, const std::string& name) {
      const ArrayVar states(n, name);
      Var step = constant(0);
      Var state = constant(Tensor::from(std::vector<float>(static_cast<std::size_t>(h), 0.5f), {1, h}));
      auto loop = while_loop({step, state});
      {
        const auto frame = loop.frame();
        loop.break_if(equal(step, n));
        state.update(tanh(matmul(state, w({h, h})) + from.read(step + offset)));
        states.write(step, state);
        step.update(step + 1);
      }
      return states;
    };
    const Var n = steps.size();
    const ArrayVar lower = layer(steps, n, 0, "lower");
    output("y", layer(lower, n - ahead, ahead, "upper").stack());
  });
}

TEST_CASE("a layer that reads ahead of its own iteration waits for the one below in each piece of a long run") {
  Random random(8);
  for (const std::int64_t h : {3, 256}) {
    const Program program = reads_ahead(h, 3);
    const Feeds feeds{{"x", random_tensor(random, {h == 3 ? 40 : 4000, 1, h})}};
    const RunResult side = on_threads(program, feeds, 2);
    CHECK(side.loops_side_by_side == 2);
    CHECK(bits(side) == bits(on_threads(program, feeds, 1)));
    if (h == 3) CHECK(bits(side) == bits(on_cpu(program, feeds, interpreted())));
  }
}

/// [T, N, width]; N is known when the program is built, or not.
Var dense_rows(std::int64_t sequences, std::int64_t width) { return input("x", VarType(DType::f32, {DDim::unknown, sequences, width})); }

TEST_CASE("the layers of a dense stack run side by side too, whether or not building knew how many sequences there are") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    const auto layers = random.between(2, 4);
    const std::int64_t h = random.between(1, 20), n = random.between(1, 6), steps = random.between(1, 150);
    std::vector<std::int64_t> widths(static_cast<std::size_t>(layers), h);
    widths[0] = 5;
    const auto weights = lstm_weights(random, widths, h);
    const bool known = seed % 2 == 0, boots = seed % 3 == 0, lengths = seed % 5 == 0, reverse = seed % 7 == 0;
    const Program program = built_program([&] {
      layers::Sequences x{dense_rows(known ? n : DDim::unknown, 5)};
      if (lengths) x.lengths = input("lengths", VarType(DType::i64, {known ? n : DDim::unknown}));
      layers::LstmOptions options;
      if (reverse) options.direction = layers::Direction::reverse;
      std::vector<Var> h_0;
      for (std::int64_t i = 0; boots && i < layers; ++i)
        h_0.push_back(input("h" + std::to_string(i), VarType(DType::f32, {DDim::unknown, h})));
      const layers::LstmResult made = layers::lstm(x, weights, options, h_0);
      output("y", made.y);
      for (std::size_t i = 0; i < made.c.size(); ++i) output("c" + std::to_string(i), made.c[i]);
    });
    Feeds feeds{{"x", random_tensor(random, {steps, n, 5})}};
    for (std::int64_t i = 0; boots && i < layers; ++i) feeds.emplace("h" + std::to_string(i), random_tensor(random, {n, h}));
    if (lengths) {
      std::vector<std::int64_t> some;
      for (std::int64_t i = 0; i < n; ++i) some.push_back(random.between(0, steps));
      feeds.emplace("lengths", Tensor::from(some, DDim{n}));
    }
    // Turned round between two layers, the steps are not those of the one below.
    CHECK(side_by_side(program, feeds) == (reverse ? 0 : layers));
    CHECK(on_threads(program, feeds, 1).fused_loops == layers);
  }
}

TEST_CASE("both directions of dense layers with lengths are fused, of any cell, and so are gates that a mask opens") {
  for (const std::uint64_t seed : seeds(8)) {
    INFO("seed ", seed);
    Random random(seed * 57);
    const std::int64_t h = random.between(1, 20), n = random.between(1, 40), steps = random.between(1, 60);
    const auto weights = lstm_weights(random, {5, 5, 2 * h, 2 * h}, h);
    const Tensor gates[] = {random_tensor(random, {1, 3 * h, 2 * h}), random_tensor(random, {1, 3 * h, h})};
    const Program program = built_program([&] {
      layers::Sequences x{dense_rows(DDim::unknown, 5), input("lengths", VarType(DType::i64, {DDim::unknown}))};
      layers::LstmOptions options;
      options.direction = layers::Direction::bidirectional;
      const Var y = layers::lstm(x, weights, options).y;
      layers::GruOptions backwards;
      backwards.direction = layers::Direction::reverse;
      output("y", layers::gru({y, x.lengths}, {layers::gru_from_onnx(gates[0], gates[1])}, backwards).y);
      const layers::Cell gated = [](const Var& row, const std::vector<Var>& states) {
        const Var grown = greater(row, states[0]);
        return layers::CellStep{row, {where(logical_or(grown, less(states[0], constant(0.0f))), row, states[0] * 0.5f)}};
      };
      output("highest", layers::unroll(gated, x, {{5}}, false).last[0]);
    });
    std::vector<std::int64_t> some;
    for (std::int64_t i = 0; i < n; ++i) some.push_back(random.between(0, steps));
    const Feeds feeds{{"x", random_tensor(random, {steps, n, 5})}, {"lengths", Tensor::from(some, DDim{n})}};
    side_by_side(program, feeds);
    CHECK(on_threads(program, feeds, 1).fused_loops == 6);
  }
}

TEST_CASE("both directions of a dense layer run side by side, then those of the next") {
  Random random(9);
  const auto weights = lstm_weights(random, {4, 4, 12, 12, 12, 12}, 6);
  for (const std::int64_t known : {std::int64_t{3}, DDim::unknown}) {
    const Program program = built_program([&] {
      layers::LstmOptions options;
      options.direction = layers::Direction::bidirectional;
      output("y", layers::lstm({dense_rows(known, 4)}, weights, options).y);
    });
    for (const std::int64_t steps : {70, 1}) CHECK(side_by_side(program, {{"x", random_tensor(random, {steps, 3, 4})}}) == 6);
    CHECK(bits(on_threads(program, {{"x", random_tensor(random, {0, 3, 4})}}, 2)).empty() == false);
  }
}

TEST_CASE(
    "a dense stack whose layers meet other numbers of sequences says so as it does iteration by iteration, and no steps give no rows") {
  Random random(10);
  const auto weights = lstm_weights(random, {4, 4, 4}, 4);
  const Program program = built_program([&] {
    std::vector<Var> initial(3);
    initial[1] = input("h", VarType(DType::f32, {DDim::unknown, 4}));
    output("y", layers::lstm({dense_rows(DDim::unknown, 4)}, weights, {}, initial).y);
  });
  CHECK(side_by_side(program, {{"x", random_tensor(random, {9, 2, 4})}, {"h", random_tensor(random, {2, 4})}}) == 3);
  for (const int threads : {1, 2}) {
    CHECK_THROWS_AS(on_threads(program, {{"x", random_tensor(random, {9, 2, 4})}, {"h", random_tensor(random, {3, 4})}}, threads),
                    ShapeError);
    const RunResult none = on_threads(program, {{"x", random_tensor(random, {0, 2, 4})}, {"h", random_tensor(random, {2, 4})}}, threads);
    CHECK(none["y"].dims() == DDim{0, 2, 4});
  }
}

TEST_CASE("loops side by side end at a deadline, and one executable runs them on several threads again and again") {
  Random random(5);
  const auto weights = lstm_weights(random, {4, 4}, 4);
  const Program program = built_program([&] { output("y", layers::lstm({rows_of(4)}, weights).y); });
  const Feeds feeds = rows(random, LoD::from_lengths({{9}}), 4);
  const Executable executable(program, make_cpu_device(2));
  ThreadExecutor executor(2);
  RunOptions options;
  options.deadline = std::chrono::nanoseconds(1);
  CHECK_THROWS_AS(sync_wait(executor, run(executable, feeds, options), "a deadline"), DeadlineError);
  const std::string wanted = bits(on_cpu(program, feeds, interpreted()));
  for (int i = 0; i < 50; ++i) {
    const RunResult again = sync_wait(executor, run(executable, feeds), "again");
    CHECK(again.loops_side_by_side == 2);
    CHECK(bits(again) == wanted);
  }
  CHECK(live_frames() == 0);
}

TEST_CASE("what one layer packs and the next unpacks alike is not packed") {
  Random random(6);
  const auto weights = lstm_weights(random, {4, 4, 4}, 4);
  const auto compiled = [](const std::function<void()>& make) { return Executable(built_program(make)).program(); };
  const auto stack = [&] { return layers::lstm({rows_of(4)}, weights).y; };
  const Program all = compiled([&] { output("y", stack()); });
  CHECK(count(all, "unpack") == 1);
  CHECK(count(all, "pack") == 1);

  // Rows that somebody else reads are packed; another order is unpacked.
  const auto two = [&](bool reverse, bool sorted) {
    return compiled([&] {
      const auto [steps, order] = unpack(rows_of(4), 0, true);
      const Var n = steps.size();
      const ArrayVar made(n, order, "made");
      Var step = constant(0);
      auto loop = while_loop({step});
      {
        const auto frame = loop.frame();
        loop.break_if(equal(step, n));
        made.write(step, sigmoid(steps.read(step)));
        step.update(step + 1);
      }
      const Var y = pack(made, 0, order);
      output("y", y);
      const std::vector<Var> again =
          call("unpack", {y}, {{"level", std::int64_t{0}}, {"sort_by_length", sorted}, {"reverse", reverse}}, {"steps", "order"});
      output("z", call1("pack", {again[0], again[1]}, {{"level", std::int64_t{0}}}));
    });
  };
  CHECK(count(two(false, true), "unpack") == 1);
  CHECK(count(two(false, true), "pack") == 2);
  CHECK(count(two(true, true), "unpack") == 2);
  CHECK(count(two(false, false), "unpack") == 2);
}

}  // namespace
