// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/keep_values.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>
#include <millrace/runtime/lowering/iteration_memory.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/tensor/caching_resource.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/loop_over.h"
#include "support/random_lod.h"
#include "support/random_program.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// A program whose loops hand out values, as outputs of the same names.
struct Keeping {
  Program program;
  std::vector<std::pair<int, KeptValue>> values;  // with the body that makes them

  void add(int body, const std::vector<std::string>& names) {
    for (const KeptValue& value : keep_values(program, body, names)) {
      program.add_output(value.name, value.array);
      values.emplace_back(body, value);
    }
    check(program);
  }
};

/// The values of a loop's body that can be kept.
std::vector<std::string> all_values(const Program& program, int body) {
  std::vector<std::string> names;
  for (const VarDef& var : program.vars()) {
    if (var.block != body) continue;
    Program tried = program;
    try {
      keep_values(tried, body, {var.name});
      names.push_back(var.name);
    } catch (const UnsupportedError&) {  // what counts iterations, what is the same in all
      continue;
    }
  }
  return names;
}

std::vector<std::string> some(Random& random, std::vector<std::string> names) {
  std::erase_if(names, [&](const std::string&) { return random.between(0, 2) == 0; });
  return names;
}

/// The elements of `value` as bytes; of truth and bf16 as `dtype`.
std::string elements(const Tensor& value, DType dtype) {
  const auto device = make_cpu_device(1);
  const Tensor held = value.dtype() == dtype ? value.copy_to(CpuPlace{}) : millrace::cast(value, dtype, device->stream(0));
  return held.dims().to_string() + std::string(static_cast<const char*>(held.raw()), held.bytes());
}

/// Runs both programs in both backends: outputs as without keeping, kept values as in the step scopes of the loop iteration by iteration. Gives how many
/// loops ran in one piece.
std::int64_t compare_kept(const Program& source, const Keeping& kept, const Feeds& feeds) {
  const RunResult wanted = on_cpu(source, feeds, interpreted());
  RunOptions scopes = interpreted();
  scopes.keep_step_scopes = true;
  const RunResult iterations = on_cpu(kept.program, feeds, scopes);
  std::int64_t fused = 0;
  for (const int threads : {0, 1, 2}) {
    INFO("threads ", threads, " (0: iteration by iteration)");
    const RunResult found = threads == 0 ? on_cpu(kept.program, feeds, interpreted())
                                         : run_fifo(run(Executable(kept.program, make_cpu_device(threads)), feeds));
    for (const auto& [name, value] : wanted.outputs())
      CHECK(elements(found[name].tensor(), value.tensor().dtype()) == elements(value.tensor().tensor(), value.tensor().dtype()));
    for (const auto& [body, value] : kept.values) {
      INFO("value: ", value.name);
      const millrace::TensorArray& array = found.value(value.name).array();
      for (std::int64_t t = 0; t < array.size(); ++t) {
        const std::optional<LoDTensor> slot = array.peek(t);
        const Value* iteration = iterations.step_value(body, t, value.name);
        REQUIRE(slot.has_value());
        REQUIRE(iteration != nullptr);
        CHECK(elements(slot->tensor(), slot->dtype()) == elements(iteration->tensor().tensor(), slot->dtype()));
      }
    }
    fused = found.fused_loops;
  }
  return fused;
}

layers::LstmWeights lstm_weights(Random& random, std::int64_t c, std::int64_t h, bool bias, bool peepholes) {
  layers::LstmWeights made{random_tensor(random, {c, 4 * h}), random_tensor(random, {h, 4 * h}), {}, {}, {}};
  if (bias) made.bias = random_tensor(random, {4 * h});
  if (peepholes) made.peepholes = random_tensor(random, {3 * h});
  return made;
}

/// Layers of so many units over "x", rows of 4.
Program stacked_lstm(Random& random, const std::vector<std::int64_t>& units) {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
  std::vector<layers::LstmWeights> weights;
  std::int64_t below = 4;
  for (const std::int64_t h : units) weights.push_back(lstm_weights(random, std::exchange(below, h), h, true, false));
  output("y", layers::lstm({x}, weights).y);
  return program;
}

TEST_CASE("a built-in LSTM hands out its gates and states, with the bits of its iterations one by one and of its step scopes") {
  for (const std::uint64_t seed : seeds(8)) {
    INFO("seed ", seed);
    Random random(seed);
    const bool dense = random.coin();
    layers::LstmOptions options;
    options.couple_input_forget = random.between(0, 3) == 0;
    options.gate_clip = random.between(0, 3) == 0 ? 0.7 : 0;
    options.direction = random.coin() ? layers::Direction::forward : layers::Direction::bidirectional;
    if (random.between(0, 3) == 0) options.weights = random.coin() ? DType::bf16 : DType::i8;
    if (random.between(0, 3) == 0) options.output = {"softsign"};
    if (random.between(0, 3) == 0) options.gate = {"hard_sigmoid", 0.3, 0.4};
    const std::int64_t h = random.between(1, 19);
    Program source;
    {
      const Guard guard(source);
      const Var x = dense ? input("x", VarType(DType::f32, {DDim::unknown, 3, 5})) : input("x", VarType(DType::f32, {DDim::unknown, 5}, 1));
      std::vector<layers::LstmWeights> weights;
      for (std::size_t i = 0; i < layers::directions(options.direction); ++i)
        weights.push_back(lstm_weights(random, 5, h, random.coin(), random.coin()));
      const layers::LstmResult made = layers::lstm({x}, weights, options);
      output("y", made.y);
      output("c_last", made.c[0]);
    }
    Keeping kept{source, {}};
    for (const int body : bodies(source)) {
      std::string cell;
      std::string before;
      for (const Op& op : source.block(body).ops) {
        if (op.type != "lstm_cell" && op.type != "lstm_gates") continue;
        cell = source.var(op.outputs[0]).name;
        before = source.var(op.inputs[2]).name;  // c
      }
      REQUIRE(!cell.empty());
      kept.add(body, {cell + ".i", cell + ".f", cell + ".g", cell + ".o", cell + ".a", cell, before});
    }
    const LoD lod = LoD::from_lengths({{3, 0, 7, 1}});
    const Feeds feeds =
        dense ? Feeds{{"x", random_tensor(random, {6, 3, 5})}} : Feeds{{"x", LoDTensor(random_tensor(random, {11, 5}), lod)}};
    CHECK(compare_kept(source, kept, feeds) == static_cast<std::int64_t>(bodies(source).size()));
  }
}

TEST_CASE("GRUs of both resets hand out all that their iterations compute, ragged and dense, in both directions") {
  for (const std::uint64_t seed : seeds(4)) {
    INFO("seed ", seed);
    Random random(seed * 31);
    const bool dense = random.coin();
    Program source;
    {
      const Guard guard(source);
      const Var x = dense ? input("x", VarType(DType::f32, {DDim::unknown, 3, 5})) : input("x", VarType(DType::f32, {DDim::unknown, 5}, 1));
      for (const auto reset : {layers::GruReset::after, layers::GruReset::before}) {
        layers::GruOptions options;
        options.reset = reset;
        options.name = reset == layers::GruReset::after ? "after" : "before";
        options.direction = random.coin() ? layers::Direction::forward : layers::Direction::reverse;
        const layers::GruWeights weights{random_tensor(random, {5, 18}), random_tensor(random, {6, 18}), random_tensor(random, {18}),
                                         random_tensor(random, {18})};
        output(options.name, layers::gru({x}, {weights}, options).y);
      }
    }
    Keeping kept{source, {}};
    for (const int body : bodies(source)) {
      const std::vector<std::string> names = all_values(source, body);
      CHECK(names.size() > 12);
      kept.add(body, names);
    }
    const LoD lod = random_lod(random, 1, 7);
    const Feeds feeds =
        dense ? Feeds{{"x", random_tensor(random, {6, 3, 5})}} : Feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 5}), lod)}};
    CHECK(compare_kept(source, kept, feeds) == (dense || lod.rows() > 0 ? 2 : 0));
  }
}

TEST_CASE("cells drawn at random hand out any of their values, on ragged batches") {
  for (const std::uint64_t seed : seeds(25)) {
    INFO("seed ", seed);
    Random random(seed * 104729);
    const CellCase each = random_cell(random, seed);
    const bool boots = random.coin();
    const Program source = over_rows(each, boots, random.coin());
    Keeping kept{source, {}};
    kept.add(bodies(source)[0], some(random, all_values(source, bodies(source)[0])));
    const LoD lod = random_lod(random, 1, 9);
    CHECK(compare_kept(source, kept, feeds_for(random, each, lod, boots)) == (lod.rows() > 0 ? 1 : 0));
  }
}

TEST_CASE("long sequences and many of them hand out the same in runs of iterations and in blocks of rows") {
  Random random(77);
  Program source = stacked_lstm(random, {12});
  Keeping kept{source, {}};
  kept.add(bodies(source)[0], {"h.i", "h.f", "h.g", "h.o", "h.a", "c"});
  LoD::Level lengths{700, 3};
  for (int i = 0; i < 150; ++i) lengths.push_back(random.between(0, 5));
  for (const LoD& lod : {LoD::from_lengths({{700, 3, 0, 411}}), LoD::from_lengths({lengths})})
    CHECK(compare_kept(source, kept, {{"x", LoDTensor(random_tensor(random, {lod.rows(), 4}), lod)}}) == 1);
}

TEST_CASE("a loop that counts from anywhere hands out its iterations from slot 0 on") {
  for (const bool known : {true, false}) {
    Program source;
    {
      const Guard guard(source);
      const Var x = input("x", VarType(DType::f32, {9, 2, 3}));
      const Var n = input("n", VarType(DType::i64, {}));
      const Var from = input("from", VarType(DType::i64, {}));
      const ArrayVar steps = ArrayVar::unstack(x);
      Var step = known ? constant(2) : from;
      Var state = constant(Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}));
      auto loop = while_loop({step, state});
      {
        auto frame = loop.frame();
        loop.break_if(greater_equal(step + 1, n));
        state.update(call1("tanh", {state + steps.read(step)}, {}, "next"));
        step.update(step + 1);
      }
      output("y", state);
      output("step", step);
    }
    Random random(3);
    Keeping kept{source, {}};
    kept.add(bodies(source)[0], {"next"});
    const Feeds feeds{
        {"x", random_tensor(random, {9, 2, 3})}, {"n", Tensor::scalar<std::int64_t>(8)}, {"from", Tensor::scalar<std::int64_t>(2)}};
    CHECK(compare_kept(source, kept, feeds) == 1);
    CHECK(on_cpu(kept.program, feeds).value("next").array().size() == 5);
    Feeds none = feeds;
    none.at("n") = Tensor::scalar<std::int64_t>(1);
    CHECK(compare_kept(source, kept, none) == 0);
    CHECK(on_cpu(kept.program, none).value("next").array().size() == 0);
  }
}

TEST_CASE("a loop over windows of its states hands out what it makes of them, and so does a loop inside another one") {
  Random random(41);
  Program windows;
  {
    const Guard guard(windows);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2, 3}));
    const ArrayVar steps = ArrayVar::unstack(x);
    const Var n = steps.size();
    const ArrayVar states(n + 2, "states");
    states.write(0, constant(random_tensor(random, {2, 3})));
    states.write(1, constant(random_tensor(random, {2, 3})));
    loop_over(n, [&](const Var& step) {
      const Var sum = call1("add", {steps.read(step), states.read(step + 1)}, {}, "sum");
      const Var earlier = call1("tanh", {states.read(step)}, {}, "earlier");
      states.write(step + 2, sum - earlier);
    });
    output("y", states.stack());
  }
  Keeping kept{windows, {}};
  kept.add(bodies(windows)[0], {"sum", "earlier"});
  CHECK(compare_kept(windows, kept, {{"x", random_tensor(random, {6, 2, 3})}}) == 1);
  CHECK(values_to_keep(windows, bodies(windows)[0], Keep::needed) == std::vector<std::string>{"earlier"});

  Program nested;
  {
    const Guard guard(nested);
    const Var x = input("x", VarType(DType::f32, {4, 2, 3}));
    const ArrayVar steps = ArrayVar::unstack(x);
    const Var n = steps.size();
    Var outer = constant(0);
    Var sum = constant(random_tensor(random, {2, 3}));
    auto loop = while_loop({outer, sum});
    {
      auto frame = loop.frame();
      loop.break_if(equal(outer, 3));
      Var inner = constant(0);
      Var state = identity(sum);
      auto within = while_loop({inner, state});
      {
        auto iteration = within.frame();
        within.break_if(equal(inner, n));
        state.update(call1("tanh", {state + steps.read(inner)}, {}, "next"));
        inner.update(inner + 1);
      }
      sum.update(state);
      outer.update(outer + 1);
    }
    output("y", sum);
  }
  Program keeping = nested;
  const std::vector<KeptValue> values = keep_values(keeping, {"next"});
  check(keeping);
  CHECK(keeping.var(values[0].array).block == keeping.var(keeping.find_var("next")).block - 1);
  const Feeds feeds{{"x", random_tensor(random, {4, 2, 3})}};
  CHECK(bits(on_cpu(keeping, feeds)) == bits(on_cpu(nested, feeds, interpreted())));
}

TEST_CASE("sequences in the caller's order hand out rows that pack takes, and the program with them is saved as any other") {
  Random random(43);
  Program source;
  {
    const Guard guard(source);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
    const auto [steps, order] = unpack(x, 0, unsorted);
    const Var n = steps.size();
    const build::TensorArray states(n, order, "states");
    const Var u = parameter("U", random_tensor(random, {3, 3}));
    const Var boot = input("boot", VarType(DType::f32, {DDim::unknown, 3}));
    loop_over(n, [&, in = steps, out = states](const Var& step) {
      const Var now = in.read(step);
      const Var before = call1("shrink", {out.read(step - 1, boot), now}, {}, "before");
      out.write(step, call1("tanh", {call1("matmul", {before, u}, {}, "product") + now}, {}, "state"));
    });
    output("y", pack(states, 0, order));
  }
  Keeping kept{source, {}};
  kept.add(bodies(source)[0], {"before", "product", "state"});
  const LoD lod = LoD::from_lengths({{2, 5, 3, 5, 1, 0}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod)}, {"boot", random_tensor(random, {6, 3})}};
  CHECK(compare_kept(source, kept, feeds) == 1);
  Program packed = source;
  const std::vector<KeptValue> values = keep_values(packed, {"state"});
  {
    const Guard guard(packed);
    for (const Op& op : Block(packed.block(0)).ops)
      if (op.type == "unpack") output("state", pack(ArrayVar::of(Var::of(values[0].array)), 0, Order(Var::of(op.outputs[1]))));
  }
  const Program read = parse_program(packed.to_string(), training::weights_of(packed));
  const RunResult result = on_cpu(read, feeds);
  CHECK(result.fused_loops == 1);
  CHECK(elements(result["state"].tensor(), DType::f32) == elements(result["y"].tensor(), DType::f32));
  CHECK(result["state"].lod() == lod);
}

TEST_CASE("what cannot be kept is refused by name, and the program stays as it was") {
  Random random(5);
  Program source = stacked_lstm(random, {6});
  const int body = bodies(source)[0];
  const std::string before = source.to_string();
  const auto refusal = [&](int block, const std::vector<std::string>& names) -> std::string {
    try {
      keep_values(source, block, names);
    } catch (const Error& error) {
      CHECK(source.to_string() == before);
      return error.what();
    }
    return "";
  };
  const std::string counter = source.var(source.block(body).params[0]).name;
  CHECK(refusal(body, {"nobody"}).find("found 'nobody'") != std::string::npos);
  CHECK(refusal(body, {"h.x"}).find("found 'h.x'") != std::string::npos);
  CHECK(refusal(body, {"h.i", "h.i"}).find("a second time") != std::string::npos);
  CHECK(refusal(body, {counter}).find("depends on no rows") != std::string::npos);
  CHECK(refusal(0, {"h"}).find("expected the body of a loop") != std::string::npos);
  CHECK(refusal(body, {"x"}).find("found 'x'") != std::string::npos);
}

TEST_CASE("layers of a stack still run side by side when they hand out values, and a value that nobody reads costs nothing") {
  Random random(9);
  Program source = stacked_lstm(random, {12, 12});
  const LoD lod = LoD::from_lengths({{40, 31, 2}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 4}), lod)}};
  Keeping kept{source, {}};
  for (const int body : bodies(source)) {
    const std::string cell = source
                                 .var(std::find_if(source.block(body).ops.begin(), source.block(body).ops.end(),
                                                   [](const Op& op) { return op.type == "lstm_cell"; })
                                          ->outputs[0])
                                 .name;
    kept.add(body, {cell + ".i", cell + ".o"});
  }
  CHECK(compare_kept(source, kept, feeds) == 2);
  CHECK(run_fifo(run(Executable(kept.program, make_cpu_device(2)), feeds)).loops_side_by_side == 2);
  Program unread = source;
  keep_values(unread, {"h.i"});
  const auto written = [](const Program& program) {
    std::size_t count = 0;
    for (const Op& op : program.block(0).ops)
      if (op.type == "while") count += FusedLoop(program, 0, op).form().outputs.size();
    return count;
  };
  CHECK(written(unread) == written(source));
}

/// The most memory that was in use at once during a fused run on one thread.
std::size_t peak_of(const Program& program, const Feeds& feeds) {
  const auto memory = std::make_shared<CachingResource>(host_memory());
  {
    const RunResult result = run_fifo(run(Executable(program, std::make_shared<CpuDevice>(1, 1, memory)), feeds));
    CHECK(result.fused_loops == 1);
    CHECK(result.live_step_scopes() == 0);
  }
  CHECK(memory->statistics().in_use == 0);
  return memory->statistics().peak;
}

TEST_CASE("what a fused loop keeps takes the memory of its rows, whatever the number of iterations, and no scope") {
  Random random(13);
  constexpr std::int64_t h = 16;
  Program source = stacked_lstm(random, {h});
  Keeping kept{source, {}};
  kept.add(bodies(source)[0], {"h.i", "h.f", "h.g", "h.o", "h.a"});
  for (const std::int64_t steps : {512, 4096}) {
    const LoD lod = LoD::from_lengths({{steps, steps}});
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 4}), lod)}};
    const std::size_t slabs = 5 * h * sizeof(float) * static_cast<std::size_t>(lod.rows());
    const std::size_t beside = peak_of(kept.program, feeds) - peak_of(source, feeds);
    CHECK(beside >= slabs);
    CHECK(beside < slabs + slabs / 50 + 65536);  // sizes of buffers of a run of iterations, whatever their number
  }
}

TEST_CASE("what a backward step of an LSTM reads is kept whole, without what one row makes again, or the states alone") {
  Random random(21);
  Program source = stacked_lstm(random, {10});
  const int body = bodies(source)[0];
  const auto planned = [&](Keep keep) {
    Keeping kept{source, {}};
    const std::vector<std::string> names = values_to_keep(kept.program, body, keep);
    kept.add(body, names);
    const LoD lod = LoD::from_lengths({{3, 0, 7, 1}});
    CHECK(compare_kept(source, kept, {{"x", LoDTensor(random_tensor(random, {11, 4}), lod)}}) == 1);
    return std::pair(std::set<std::string>(names.begin(), names.end()), iteration_memory(kept.program, body, names));
  };
  using Names = std::set<std::string>;
  const auto [all, none] = planned(Keep::needed);
  CHECK(all == Names{"h", "c", "h.i", "h.f", "h.g", "h.o", "h.a"});
  CHECK(none.recomputed.empty());
  CHECK(none.missing.empty());
  CHECK(none.kept == 70);
  const auto [lean, little] = planned(Keep::lean);
  CHECK(lean == Names{"h", "c", "h.i", "h.f", "h.g", "h.o"});
  CHECK(little.recomputed == std::vector<std::string>{"h.a"});
  CHECK(little.products == 0);
  const auto [states, much] = planned(Keep::states);
  CHECK(states == Names{"h", "c"});
  CHECK(much.missing.empty());
  CHECK(much.products == 2);
  CHECK(much.kept == 20);
  Program spelled = source;
  keep_values(spelled, body, {"h.i", "h"});
  const IterationMemory wanting = iteration_memory(spelled, body, {"h.i", "h"});
  CHECK(wanting.missing.size() == 1);  // c
}

TEST_CASE("whatever cell is drawn, a backward step has all it reads under each choice of what is kept") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed * 65537);
    const CellCase each = random_cell(random, seed);
    const Program source = over_rows(each, false, false);
    const int body = bodies(source)[0];
    const LoD lod = random_lod(random, 1, 6);
    for (const Keep keep : {Keep::needed, Keep::lean, Keep::states}) {
      Keeping kept{source, {}};
      const std::vector<std::string> names = values_to_keep(kept.program, body, keep);
      kept.add(body, names);
      const IterationMemory memory = iteration_memory(kept.program, body, names);
      CHECK(memory.missing.empty());
      if (keep == Keep::needed) CHECK(memory.recomputed.empty());
      if (keep == Keep::lean) CHECK(memory.products == 0);
      CHECK(compare_kept(source, kept, feeds_for(random, each, lod, false)) == (lod.rows() > 0 ? 1 : 0));
    }
  }
}

}  // namespace
