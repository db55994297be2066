// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_filters.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/layers/causal_conv.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/tensor/copy.h>
#include <support/built.h>
#include <support/drive.h>
#include <support/random_lod.h>
#include <support/random_tensor.h>
#include <support/step_by_step.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;

std::ptrdiff_t count(const Program& program, const std::string& type) {
  const auto& ops = program.block(0).ops;
  return std::count_if(ops.begin(), ops.end(), [&](const Op& op) { return op.type == type; });
}

Program lowered(Program program) {
  lower_for_runs(program, CpuPlace{});
  return program;
}

/// y and the last state of a causal convolution over x, whose axes are those of [T, N, C] in the order `perm`.
struct Layer {
  std::int64_t channels = 0, taps = 2, dilation = 1;
  Ints perm{0, 1, 2};
  bool known_weights = true, with_bias = false, known_sequences = true;
};
Program dense(const Layer& layer, std::int64_t sequences, const Tensor& w, const Tensor& b) {
  return built_program([&] {
    Ints inverse(3);
    for (std::size_t i = 0; i < 3; ++i) inverse[static_cast<std::size_t>(layer.perm[i])] = static_cast<std::int64_t>(i);
    const DDim rows{DDim::unknown, layer.known_sequences ? sequences : DDim::unknown, layer.channels};
    DDim given = rows;
    for (int i = 0; i < 3; ++i) given[static_cast<int>(layer.perm[static_cast<std::size_t>(i)])] = rows[i];
    const build::Var x =
        build::transpose(build::input("x", VarType(w.dtype(), given)),
                         {static_cast<int>(layer.perm[0]), static_cast<int>(layer.perm[1]), static_cast<int>(layer.perm[2])});
    const std::int64_t before = (layer.taps - 1) * layer.dilation;
    const build::Var past =
        build::input("past", VarType(w.dtype(), {layer.known_sequences ? sequences : DDim::unknown, layer.channels * before}));
    const build::Var weights = layer.known_weights ? build::parameter("w", w) : build::input("w", VarType(w.dtype(), w.dims()));
    const build::Var bias = !layer.with_bias      ? build::Var()
                            : layer.known_weights ? build::parameter("b", b)
                                                  : build::input("b", VarType(b.dtype(), b.dims()));
    const layers::Unrolled made = layers::causal_conv({x}, weights, bias, past, layer.dilation);
    build::output(
        "y", build::transpose(made.output, {static_cast<int>(inverse[0]), static_cast<int>(inverse[1]), static_cast<int>(inverse[2])}));
    build::output("last", made.last[0]);
  });
}

}  // namespace

TEST_CASE("a causal convolution over a dense input is one filter, with the bits of its loop over ragged rows") {
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    Layer layer{random.between(1, 20),     random.between(2, 5),      random.between(1, 3),     {0, 1, 2},
                random.between(0, 1) == 0, random.between(0, 1) == 0, random.between(0, 1) == 0};
    for (std::int64_t turns = random.between(0, 5); turns > 0; --turns) std::next_permutation(layer.perm.begin(), layer.perm.end());
    const std::int64_t steps = random.between(0, 9), sequences = random.between(1, 4);
    const DType dtype = random.between(0, 1) == 0 ? DType::f32 : DType::f64;
    const Tensor w = random_tensor(random, {layer.channels, layer.taps}, 1, dtype), b = random_tensor(random, {layer.channels}, 1, dtype);
    const Program program = dense(layer, sequences, w, b);
    CHECK(count(lowered(program), "causal_filter") == 1);
    for (const char* gone : {"while", "tensor_array", "tensor_array_unstack", "tensor_array_stack", "tensor_array_read"})
      CHECK(count(lowered(program), gone) == 0);

    // x [T, N, C], and the same rows sequence by sequence.
    const std::int64_t before = (layer.taps - 1) * layer.dilation;
    const Tensor x = random_tensor(random, {steps, sequences, layer.channels}, 1, dtype),
                 past = random_tensor(random, {sequences, layer.channels * before}, 1, dtype);
    std::vector<int> axes(3);
    for (std::size_t i = 0; i < 3; ++i) axes[static_cast<std::size_t>(layer.perm[i])] = static_cast<int>(i);
    const auto contiguous = [](const Tensor& view) { return view.copy_to(CpuPlace{}); };
    Feeds feeds{{"x", contiguous(x.permute(axes))}, {"past", past}};
    if (!layer.known_weights) feeds["w"] = w;
    if (!layer.known_weights && layer.with_bias) feeds["b"] = b;
    const RunResult found = run_fifo(run(program, feeds));

    const Program ragged = built_program([&] {
      const build::Var rows = build::input("x", VarType(dtype, {DDim::unknown, layer.channels}, 1));
      const build::Var state = build::input("past", VarType(dtype, {DDim::unknown, layer.channels * before}));
      const layers::Unrolled made = layers::causal_conv({rows}, build::parameter("w", w),
                                                        layer.with_bias ? build::parameter("b", b) : build::Var(), state, layer.dilation);
      build::output("y", made.output);
      build::output("last", made.last[0]);
    });
    CHECK(count(lowered(ragged), "while") == 1);
    const LoD lod = LoD::from_lengths({Ints(static_cast<std::size_t>(sequences), steps)});
    const Tensor rows = contiguous(x.permute({1, 0, 2})).reshape(DDim{sequences * steps, layer.channels});
    const RunResult wanted = run_fifo(run(ragged, Feeds{{"x", LoDTensor(rows, lod)}, {"past", past}}));
    CHECK(bytes_of(found["last"].tensor()) == bytes_of(wanted["last"].tensor()));
    const Tensor y = wanted["y"].tensor().reshape(DDim{sequences, steps, layer.channels}).permute({1, 0, 2});
    CHECK(bytes_of(contiguous(found["y"].tensor())) == bytes_of(contiguous(y.permute(axes))));
  }
}

TEST_CASE("sums of weighted rows of a window in any order are filters, with the bits of their loops") {
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t channels = random.between(1, 6), reach = random.between(1, 4), steps = random.between(0, 7),
                       sequences = random.between(1, 3);
    const std::int64_t window = channels * (reach + 1);
    const Tensor all = random_tensor(random, {1, window}), each = random_tensor(random, {channels}),
                 bias = random_tensor(random, {channels});
    Ints picks;  // a row of the weighted window, or (below 0) a row of the window, weighted alone
    for (std::int64_t terms = random.between(2, 6); terms > 0; --terms) picks.push_back(random.between(-reach - 1, reach));
    const std::int64_t sides = random.between(0, 63);
    const layers::Cell cell = [&](const build::Var& row, const std::vector<build::Var>& states) {
      const build::Var seen = build::concat({states[0], row}, 1);
      const build::Var weighted = build::parameter("all", all) * seen;
      build::Var sum;
      for (std::size_t i = 0; i < picks.size(); ++i) {
        const std::int64_t at = picks[i] < 0 ? -picks[i] - 1 : picks[i];
        const build::Var part = build::slice(picks[i] < 0 ? seen : weighted, 1, at * channels, (at + 1) * channels);
        const build::Var term = picks[i] < 0 ? part * build::parameter("each", each) : part;
        sum = !sum.defined() ? term : (sides >> i) % 2 == 0 ? sum + term : term + sum;
      }
      if (sides % 3 == 0) sum = build::parameter("bias", bias) + sum;
      return layers::CellStep{sum, {build::slice(seen, 1, channels, window)}};
    };
    const auto program = [&](const VarType& rows) {
      return built_program([&] {
        const build::Var x = build::input("x", rows);
        const build::Var past = build::input("past", VarType(DType::f32, {DDim::unknown, channels * reach}));
        const layers::Unrolled made = layers::unroll(cell, {x}, {{channels * reach, past}});
        build::output("y", made.output);
        build::output("last", made.last[0]);
      });
    };
    const Program dense = program(VarType(DType::f32, {DDim::unknown, DDim::unknown, channels}));
    CHECK(count(lowered(dense), "causal_filter") == 1);
    const Tensor x = random_tensor(random, {steps, sequences, channels}), past = random_tensor(random, {sequences, channels * reach});
    const RunResult found = run_fifo(run(dense, Feeds{{"x", x}, {"past", past}}));
    const LoD lod = LoD::from_lengths({Ints(static_cast<std::size_t>(sequences), steps)});
    const Tensor rows = x.permute({1, 0, 2}).copy_to(CpuPlace{}).reshape(DDim{sequences * steps, channels});
    const RunResult wanted =
        run_fifo(run(program(VarType(DType::f32, {DDim::unknown, channels}, 1)), Feeds{{"x", LoDTensor(rows, lod)}, {"past", past}}));
    const Tensor y = wanted["y"].tensor().reshape(DDim{sequences, steps, channels}).permute({1, 0, 2}).copy_to(CpuPlace{});
    CHECK(bytes_of(found["y"].tensor()) == bytes_of(y));
    CHECK(bytes_of(found["last"].tensor()) == bytes_of(wanted["last"].tensor()));
  }
}

TEST_CASE("a filter that feeds a filter, and one whose last state nobody reads, are filters, too") {
  Random random(3);
  const Tensor w = random_tensor(random, {4, 3});
  const Program program = built_program([&] {
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2, 4}));
    const build::Var weights = build::parameter("w", w);
    const build::Var first = layers::causal_conv({x}, weights).output;
    build::output("y", layers::causal_conv({build::tanh(first)}, weights).output);
  });
  CHECK(count(lowered(program), "causal_filter") == 2);
  CHECK(count(lowered(program), "while") == 0);
}

TEST_CASE("a filter whose window is a row of the input as it is, read behind the loop, is one op") {
  Random random(9);
  const Tensor w = random_tensor(random, {8});
  const Program program = built_program([&] {
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2, 4}));
    const layers::Cell cell = [&](const build::Var& row, const std::vector<build::Var>& states) {
      const build::Var weighted = build::concat({states[0], row}, 1) * build::parameter("w", w);
      return layers::CellStep{build::slice(weighted, 1, 0, 4) + build::slice(weighted, 1, 4, 8), {row}};
    };
    const layers::Unrolled made = layers::unroll(cell, {x}, {{4}});
    build::output("y", made.output);
    build::output("last", made.last[0]);
  });
  CHECK(count(lowered(program), "causal_filter") == 1);
}

TEST_CASE("a loop whose output is no sum of weighted rows of its window stays a loop") {
  Random random(4);
  const Tensor w = random_tensor(random, {8}), one = random_tensor(random, {4});
  const auto loops = [&](const std::function<build::Var(build::Var row, build::Var state, build::Var window)>& output, bool shifts = true) {
    return count(lowered(built_program([&] {
                   const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2, 4}));
                   const layers::Cell cell = [&](const build::Var& row, const std::vector<build::Var>& states) {
                     const build::Var window = build::concat({states[0], row}, 1);
                     return layers::CellStep{output(row, states[0], window), {shifts ? build::slice(window, 1, 4, 8) : states[0] + row}};
                   };
                   const layers::Unrolled made = layers::unroll(cell, {x}, {{4}});
                   build::output("y", made.output);
                   build::output("last", made.last[0]);
                 })),
                 "while");
  };
  const auto weighted = [&](const build::Var& window) { return window * build::constant(w); };
  const auto half = [](const build::Var& all, int which) { return build::slice(all, 1, 4 * which, 4 * which + 4); };
  CHECK(loops([&](auto, auto, auto window) { return half(weighted(window), 0) + half(weighted(window), 1); }) == 0);
  CHECK(loops([&](auto row, auto, auto window) { return half(weighted(window), 0) + row; }) == 1);
  CHECK(loops([&](auto, auto, auto window) { return half(weighted(window), 0) * build::constant(one); }) == 1);
  CHECK(loops([&](auto, auto, auto window) { return build::tanh(half(weighted(window), 0)) + half(weighted(window), 1); }) == 1);
  CHECK(loops([&](auto, auto, auto window) { return half(weighted(window), 0) + half(weighted(window), 1); }, false) == 1);
  CHECK(loops([&](auto, auto state, auto window) { return half(weighted(window), 0) + state * build::constant(one); }) == 0);
}

TEST_CASE("a filter beside a loop that is none leaves the loop as it is") {
  Random random(6);
  const Tensor w = random_tensor(random, {4, 3});
  const auto program = [&](bool filters) {
    return built_program([&] {
      const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2, 4}));
      const build::Var filtered = filters ? layers::causal_conv({x}, build::parameter("w", w)).output : x;
      const layers::Cell sums = [](const build::Var& row, const std::vector<build::Var>& states) {
        const build::Var next = build::tanh(states[0] + row);
        return layers::CellStep{next, {next}};
      };
      build::output("filtered", filtered);
      build::output("y", layers::unroll(sums, {filtered}, {{4}}).output);
    });
  };
  CHECK(count(lowered(program(true)), "while") == 1);
  const RunResult found = run_fifo(run(program(true), Feeds{{"x", random_tensor(random, {5, 2, 4})}}));
  const RunResult wanted = run_fifo(run(program(false), Feeds{{"x", found["filtered"].tensor()}}));
  CHECK(bytes_of(found["y"].tensor()) == bytes_of(wanted["y"].tensor()));
}

namespace {

/// A filter of two taps over x [T, 2, 4], as a loop of one's own.
struct OwnLoop {
  bool gives_count = false, boot_inside = false;
  std::int64_t max_trips = -1, read_before = 1;

  Program program(const Tensor& w) const {
    return built_program([&] {
      using namespace build;
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2, 4}));
      const ArrayVar rows = ArrayVar::unstack(x);
      const Var steps = rows.size();
      const VarType slot(DType::f32, {2, 4});
      const ArrayVar windows = ArrayVar::typed(steps, slot, "windows"), sums = ArrayVar::typed(steps, slot, "sums");
      const Var outside = constant(make_darray(DDim{2, 4}, 0.5f));
      Var count = constant(std::int64_t{0});
      auto loop = while_loop({count}, {.max_trips = max_trips});
      {
        auto frame = loop.frame();
        loop.break_if(equal(count, steps));
        const Var row = rows.read(count);
        const Var window = windows.read(count - read_before, boot_inside ? constant(make_darray(DDim{2, 4}, 0.5f)) : outside);
        const Var seen = concat({window, row}, 1) * parameter("w", w);
        sums.write(count, slice(seen, 1, 0, 4) + slice(seen, 1, 4, 8));
        windows.write(count, row);
        count.update(count + 1);
      }
      if (gives_count) output("count", count);
      output("y", sums.stack());
    });
  }
};

}  // namespace

TEST_CASE(
    "a loop whose count is read, whose iterations have a limit, whose boot is its own or whose window is of another iteration stays a "
    "loop") {
  Random random(7);
  const Tensor w = random_tensor(random, {8}), x = random_tensor(random, {5, 2, 4});
  const auto found = [&](const OwnLoop& loop) { return run_fifo(run(loop.program(w), Feeds{{"x", x}})); };
  const OwnLoop plain, counts{.gives_count = true}, boots{.boot_inside = true}, limited{.max_trips = 3}, later{.read_before = 2};
  CHECK(count(lowered(plain.program(w)), "while") == 0);
  for (const OwnLoop* loop : {&counts, &boots, &limited, &later}) CHECK(count(lowered(loop->program(w)), "while") == 1);
  Program handed_on = plain.program(w);  // a block gives the array of the sums as its result
  const auto& ops = handed_on.block(0).ops;
  const auto stack = std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.type == "tensor_array_stack"; });
  const VarId sums = stack->inputs[0];
  handed_on.block(handed_on.add_block(0)).results = {sums};
  CHECK(count(lowered(handed_on), "while") == 1);
  const std::vector<std::byte> y = bytes_of(found(plain)["y"].tensor());
  CHECK(bytes_of(found(counts)["y"].tensor()) == y);
  CHECK(found(counts)["count"].tensor().item_int() == 5);
  CHECK(bytes_of(found(boots)["y"].tensor()) == y);
  CHECK_THROWS_AS(found(limited), NeverWrittenError);
}

TEST_CASE("a run that asks for iterations, or for a backend, has the loop of a filter, with the bits of the filter") {
  Random random(8);
  const Tensor w = random_tensor(random, {8});
  const Executable executable(OwnLoop().program(w));
  const Feeds feeds{{"x", random_tensor(random, {5, 2, 4})}};
  const RunResult whole = run_fifo(run(executable, feeds));
  CHECK(count(executable.program(), "causal_filter") == 1);
  RunOptions options;
  options.keep_step_scopes = true;
  const RunResult kept = run_fifo(run(executable, feeds, options));
  CHECK(bytes_of(kept["y"].tensor()) == bytes_of(whole["y"].tensor()));
  CHECK(kept.iterations == 5);
  CHECK(whole.iterations == 0);
  options = {};
  options.backend = Backend::fused;
  const RunResult fused = run_fifo(run(executable, feeds, options));
  CHECK(bytes_of(fused["y"].tensor()) == bytes_of(whole["y"].tensor()));
  CHECK(fused.iterations == 5);
}
