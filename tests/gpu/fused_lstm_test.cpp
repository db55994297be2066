// SPDX-License-Identifier: Apache-2.0
// Loops over an LSTM cell run as one kernel on a device, with the bits of the same loops iteration by iteration there.
#include <millrace/runtime/loops/cuda_recurrent/device_lstm.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>
#include <millrace/runtime/executor/compiled_program.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/recurrent.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/cuda_device.h>
#include <support/random_lstm.h>
#include <support/test_place.h>

namespace millrace::testing {
namespace {

using namespace build;

RunResult run_in(Backend backend, const Program& program, const Feeds& feeds, const std::shared_ptr<Device>& device) {
  ThreadExecutor executor(2);
  RunOptions options;
  options.backend = backend;
  return sync_wait(executor, run(Executable(program, device), feeds, options));
}

bool same_bits(const LoDTensor& a, const LoDTensor& b) {
  const Tensor x = a.tensor().copy_to(CpuPlace{}), y = b.tensor().copy_to(CpuPlace{});
  return a.lod() == b.lod() && x.dtype() == y.dtype() && x.dims() == y.dims() && x.is_contiguous() && y.is_contiguous() &&
         (x.elements() == 0 || std::memcmp(x.raw(), y.raw(), x.bytes()) == 0);
}

/// Runs the program iteration by iteration and in one piece; so many loops must have been fused.
void compare(const Program& program, const Feeds& feeds, std::int64_t loops, const std::shared_ptr<Device>& device) {
  const RunResult expected = run_in(Backend::interpreted, program, feeds, device);
  const RunResult found = run_in(Backend::fused, program, feeds, device);
  CHECK(expected.fused_loops == 0);
  CHECK(found.fused_loops == loops);
  CHECK(found.iterations == expected.iterations);
  for (const auto& [name, value] : expected.outputs()) CHECK_MESSAGE(same_bits(found.value(name).tensor(), value.tensor()), name);
}

std::vector<std::int64_t> lengths_of(Random& random, std::int64_t sequences) {
  std::vector<std::int64_t> made;
  for (std::int64_t i = 0; i < sequences; ++i) made.push_back(random.coin() ? random.between(0, 9) : random.between(0, 3));
  made[0] = 4;  // some rows
  return made;
}

/// LSTM layers of f32, each on the slots of the one before it, over ragged rows "x" of 3 features.
Program stack_of(Random& random, std::size_t count, std::int64_t hidden) {
  std::vector<layers::LstmWeights> weights{random_lstm_weights(random, DType::f32, 3, hidden)};
  while (weights.size() < count) weights.push_back(random_lstm_weights(random, DType::f32, hidden, hidden));
  Program program;
  const Guard guard(program);
  const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
  build::output("y", layers::lstm({x}, weights).y);
  return program;
}

Feeds rows_of(Random& random, const std::vector<std::int64_t>& lengths) {
  const LoD lod = LoD::from_lengths({lengths});
  return {{"x", LoDTensor(random_of(random, DType::f32, DDim{lod.rows(), 3}), lod)}};
}

}  // namespace

TEST_CASE("layers of LSTMs over ragged sequences have the same bits iteration by iteration and as one kernel each") {
  const std::shared_ptr<Device> devices[] = {make_device(Place::parse(test_place()), 1, 3),
                                             make_device(Place::parse(test_place()), 1, 2, true)};  // tf32
  for (const std::uint64_t seed : seeds(4)) {
    Random random(seed);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const std::int64_t input = random.between(1, 9), hidden = random.between(1, 30);
      const auto direction = static_cast<layers::Direction>(random.between(0, 2));
      const bool two = random.coin();
      const std::int64_t wide = direction == layers::Direction::bidirectional ? 2 * hidden : hidden;
      std::vector<layers::LstmWeights> weights;
      for (int layer = 0; layer < (two ? 2 : 1); ++layer)
        for (int d = 0; d < (wide > hidden ? 2 : 1); ++d)
          weights.push_back(random_lstm_weights(random, dtype, layer == 0 ? input : wide, hidden));
      INFO("seed ", seed, ", ", name_of(dtype), ", C ", input, ", H ", hidden, ", ", weights.size(), " loops");
      Program program;
      {
        const Guard guard(program);
        const Var x = build::input("x", VarType(dtype, {DDim::unknown, input}, 1));
        layers::LstmOptions options;
        options.direction = direction;
        const layers::LstmResult made = layers::lstm({x}, weights, options);
        build::output("y", made.y);
        for (std::size_t i = 0; i < made.h.size(); ++i) {
          build::output("h" + std::to_string(i), made.h[i]);
          build::output("c" + std::to_string(i), made.c[i]);
        }
      }
      const LoD lod = LoD::from_lengths({lengths_of(random, random.between(1, 20))});
      Feeds feeds;
      feeds.insert_or_assign("x", LoDTensor(random_of(random, dtype, DDim{lod.rows(), input}), lod));
      for (const auto& device : devices)
        if (dtype == DType::f32 || device == devices[0]) compare(program, feeds, static_cast<std::int64_t>(weights.size()), device);
    }
  }
}

TEST_CASE("sequences in the caller's order, initial states, ops around the cell and equal lengths have the same bits in one kernel too") {
  const auto device = make_device(Place::parse(test_place()), 1, 3);
  for (const std::uint64_t seed : seeds(4)) {
    Random random(seed);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      constexpr std::int64_t input = 5, hidden = 13;
      const layers::LstmWeights weights = random_lstm_weights(random, dtype, input, hidden);
      const bool dense = random.coin();
      INFO("seed ", seed, ", ", name_of(dtype), std::string(dense ? ", dense" : ", ragged"));
      Program program;
      {
        const Guard guard(program);
        const Var x = build::input("x", dense ? VarType(dtype, {DDim::unknown, 3, input}) : VarType(dtype, {DDim::unknown, input}, 1));
        const Var h = build::input("h", VarType(dtype, {3, hidden})), c = build::input("c", VarType(dtype, {3, hidden}));
        const layers::Cell cell = layers::lstm_cell(weights);
        const layers::Cell around = [&](const Var& row, const std::vector<Var>& state) {
          layers::CellStep next = cell(tanh(row), state);
          return layers::CellStep{relu(next.output), next.states};
        };
        const layers::Unrolled made = layers::unroll(around, {x}, {{hidden, h}, {hidden, c}});
        build::output("y", made.output);
        for (std::size_t i = 0; i < 2; ++i) build::output("last" + std::to_string(i), made.last[i]);
        if (!dense) {
          DynamicRNN rnn({.sort_by_length = false});
          Var memory_h, memory_c;
          {
            const auto block = rnn.block();
            const Var row = rnn.step_input(x);
            memory_h = rnn.memory(h);
            memory_c = rnn.memory(c);
            const layers::CellStep next = cell(row, {memory_h, memory_c});
            rnn.update_memory(memory_h, next.states[0]);
            rnn.update_memory(memory_c, next.states[1]);
            rnn.output(next.output);
          }
          build::output("unsorted", rnn.outputs()[0]);
          build::output("unsorted_c", rnn.last(memory_c));
        }
      }
      Feeds feeds;
      const LoD lod = LoD::from_lengths({{random.between(1, 6), random.between(1, 6), random.between(1, 6)}});
      feeds.insert_or_assign("x", dense ? LoDTensor(random_of(random, dtype, DDim{random.between(1, 6), 3, input}))
                                        : LoDTensor(random_of(random, dtype, DDim{lod.rows(), input}), lod));
      for (const char* name : {"h", "c"}) feeds.insert_or_assign(name, LoDTensor(random_of(random, dtype, DDim{3, hidden})));
      compare(program, feeds, dense ? 1 : 2, device);
    }
  }
}

TEST_CASE("the states before each step leave an LSTM's kernel too, of sorted, unsorted and equal sequences") {
  const auto device = make_device(Place::parse(test_place()), 1, 2);
  for (const std::uint64_t seed : seeds(2)) {
    Random random(seed);
    for (const DType dtype : {DType::f32, DType::f16})
      for (const std::string form : {"sorted", "unsorted", "dense"}) {
        const std::int64_t input = random.between(1, 5), hidden = random.between(1, 20), sequences = random.between(1, 12);
        const layers::LstmWeights weights = random_lstm_weights(random, dtype, input, hidden);
        INFO("seed ", seed, ", ", name_of(dtype), ", ", form);
        const bool dense = form == "dense";
        Program program;
        {
          const Guard guard(program);
          const VarType rows = dense ? VarType(dtype, {DDim::unknown, sequences, input}) : VarType(dtype, {DDim::unknown, input}, 1);
          const Var x = build::input("x", rows);
          const VarType states(dtype, {sequences, hidden});
          const Var h = build::input("h", states), c = build::input("c", states);
          const layers::Cell cell = layers::lstm_cell(weights);
          const auto fill = [&](auto& rnn) {
            const auto block = rnn.block();
            const Var row = rnn.step_input(x);
            const Var before_h = rnn.memory(h), before_c = rnn.memory(c);
            const layers::CellStep next = cell(row, {before_h, before_c});
            rnn.update_memory(before_h, next.states[0]);
            rnn.update_memory(before_c, next.states[1]);
            for (const Var& one : {before_h, before_c, next.output}) rnn.output(one);
          };
          const auto give = [](const auto& rnn) {
            for (std::size_t i = 0; i < 3; ++i) build::output("y" + std::to_string(i), rnn.outputs()[i]);
          };
          if (dense) {
            StaticRNN rnn;
            fill(rnn);
            give(rnn);
          } else {
            DynamicRNN rnn({.sort_by_length = form == "sorted"});
            fill(rnn);
            give(rnn);
          }
        }
        Feeds feeds;
        const LoD lod = LoD::from_lengths({lengths_of(random, sequences)});
        feeds.insert_or_assign("x",
                               dense ? LoDTensor(random_of(random, dtype, DDim{seed == 2 ? 300 : random.between(1, 6), sequences, input}))
                                     : LoDTensor(random_of(random, dtype, DDim{lod.rows(), input}), lod));
        for (const char* name : {"h", "c"}) feeds.insert_or_assign(name, LoDTensor(random_of(random, dtype, DDim{sequences, hidden})));
        compare(program, feeds, 1, device);
      }
  }
}

TEST_CASE("a mask that holds the states of rows has the same bits in one kernel, and so have outputs that are zero where it does") {
  const auto fine = make_device(Place::parse(test_place()), 1, 3);
  const auto coarse = make_device(Place::parse(test_place()), 1, 3, true);  // tf32
  for (const std::uint64_t seed : seeds(3)) {
    Random random(seed);
    for (const auto& [dtype, device] : {std::pair{DType::f32, fine}, {DType::f32, coarse}, {DType::f16, fine}, {DType::bf16, fine}}) {
      const std::int64_t input = random.between(1, 9), hidden = random.between(1, 30), n = random.between(1, 12);
      const bool any_rows = random.coin();  // or those before a length, as of ONNX's sequence_lens
      INFO("seed ", seed, ", ", name_of(dtype), ", H ", hidden, ", N ", n);
      const layers::LstmWeights weights = random_lstm_weights(random, dtype, input, hidden);
      Program program;
      {
        const Guard guard(program);
        const Var x = build::input("x", VarType(dtype, {DDim::unknown, n, input}));
        const Var mask = build::input("mask", VarType(DType::boolean, {DDim::unknown, n, 1}));
        const ArrayVar rows = ArrayVar::unstack(x), live = ArrayVar::unstack(mask);
        const Var iterations = rows.size();
        ArrayVar outputs(iterations), cells(iterations);
        const Var zero = build::parameter("zero", random_of(random, dtype, DDim{n, hidden}, 0));
        const Var none = build::parameter("none", random_of(random, dtype, DDim{n, hidden}, 0));
        Var step = constant(std::int64_t{0}), h = zero, c = none;
        auto loop = while_loop({step, h, c});
        {
          auto frame = loop.frame();
          loop.break_if(equal(step, iterations));
          const Var alive = live.read(step);
          const layers::CellStep next = layers::lstm_cell(weights)(rows.read(step), {h, c});
          outputs.write(step, where(alive, next.states[0], cast(constant(0.0), dtype)));
          const Var c_next = where(alive, next.states[1], c);
          cells.write(step, tanh(c_next));
          h.update(where(alive, next.states[0], h));
          c.update(c_next);
          step.update(step + 1);
        }
        build::output("y", outputs.stack());
        build::output("cells", cells.stack());
        build::output("h", h);
        build::output("c", c);
      }
      const std::int64_t iterations = random.between(1, 9);
      Tensor mask(DType::boolean, DDim{iterations, n, 1});
      for (std::int64_t row = 0; row < n; ++row) {
        const std::int64_t length = random.between(0, iterations);
        for (std::int64_t t = 0; t < iterations; ++t) mask.mutable_data<bool>()[t * n + row] = any_rows ? random.coin() : t < length;
      }
      Feeds feeds;
      feeds.insert_or_assign("x", LoDTensor(random_of(random, dtype, DDim{iterations, n, input})));
      feeds.insert_or_assign("mask", LoDTensor(mask));
      compare(program, feeds, 1, device);
    }
  }
}

TEST_CASE("a loop that runs iteration by iteration, or as a generated kernel, reads the slots of an LSTM's kernel with the same bits") {
  const auto device = make_device(Place::parse(test_place()), 1, 3);
  for (const std::uint64_t seed : seeds(3)) {
    Random random(seed);
    const bool generated = seed % 2 == 0;  // no generated kernel has powers
    INFO("seed ", seed, std::string(generated ? ", generated" : ""));
    const std::int64_t input = random.between(1, 9), hidden = random.between(1, 30);
    const layers::LstmWeights weights = random_lstm_weights(random, DType::f32, input, hidden);
    Program program;
    {
      const Guard guard(program);
      const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, input}, 1));
      const Var y = layers::lstm({x}, {weights}, {}).y;
      const layers::Cell decay = [generated](const Var& row, const std::vector<Var>& state) {
        const Var sum = tanh(add(row, state[0]));
        const Var next = generated ? sum : tanh(build::pow(abs(sum), abs(row)));
        return layers::CellStep{next, {next}};
      };
      const layers::Unrolled made = layers::unroll(decay, {y}, {{hidden, Var()}});
      build::output("y", y);
      build::output("sums", made.output);
      build::output("last", made.last[0]);
    }
    const LoD lod = LoD::from_lengths({lengths_of(random, random.between(1, 20))});
    Feeds feeds;
    feeds.insert_or_assign("x", LoDTensor(random_of(random, DType::f32, DDim{lod.rows(), input}), lod));
    compare(program, feeds, generated ? 2 : 1, device);
  }
}

TEST_CASE("the trace of a fused loop shows its slots ready one after the other, while its kernel goes on") {
  const auto device = make_device(Place::parse(test_place()), 1, 2);
  Random random(4);
  Program program;
  {
    const Guard guard(program);
    const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
    build::output("y", layers::lstm({x}, {random_lstm_weights(random, DType::f32, 3, 8)}, {}).y);
  }
  constexpr std::int64_t iterations = 300;  // more than a launch
  Feeds feeds;
  feeds.insert_or_assign("x", LoDTensor(random_of(random, DType::f32, DDim{iterations, 3}), LoD::from_lengths({{iterations}})));
  ThreadExecutor executor(2);
  Tracer tracer;
  RunOptions options;
  options.backend = Backend::fused;
  options.tracer = &tracer;
  const RunResult result = sync_wait(executor, run(Executable(program, device), feeds, options));
  CHECK(result.fused_loops == 1);
  std::vector<Tracer::Event> slots = tracer.events("slot");
  REQUIRE(slots.size() == iterations);
  for (std::int64_t t = 0; t < iterations; ++t) CHECK(slots[static_cast<std::size_t>(t)].step == t);
  CHECK(slots[0].end_ns < slots[iterations - 1].end_ns);
}

TEST_CASE("a layer on another stream of the device works on a step while the kernel of the layer before it is beyond the next") {
  const auto device = make_device(Place::parse(test_place()), 1, 3);
  const bool emulated = cuda_devices().front().name == "emulated";
  const std::int64_t iterations = emulated ? 300 : 4000, hidden = emulated ? 8 : 256;
  Random random(3);
  const Program program = stack_of(random, 2, hidden);
  const Feeds feeds = rows_of(random, {iterations, iterations / 2, 0, iterations});
  const Executable executable(program, device);
  const RunResult expected = run_in(Backend::interpreted, program, feeds, device);
  // Threads that stand for streams share the cores with whatever else runs here: they are given many runs to meet in one.
  const int runs = emulated ? 40 : 5, wanted = emulated ? 1 : 4;
  int overlapping = 0;
  for (int i = 0; i < runs && overlapping < wanted; ++i) {
    ThreadExecutor executor(2);
    Tracer tracer;
    RunOptions options;
    options.backend = Backend::fused;
    options.tracer = &tracer;
    const RunResult result = sync_wait(executor, run(executable, feeds, options));
    CHECK(result.fused_loops == 2);
    CHECK(same_bits(result.value("y").tensor(), expected.value("y").tensor()));
    CHECK(tracer.events("iterations").size() > 1);
    // Both layers have made their first step before either has made its last.
    std::int64_t first = 0, last = std::numeric_limits<std::int64_t>::max();
    for (const Tracer::Event& slot : tracer.events("slot")) {
      if (slot.step == 0) first = std::max(first, slot.end_ns);
      if (slot.step == iterations - 1) last = std::min(last, slot.end_ns);
    }
    overlapping += first < last ? 1 : 0;
  }
  CHECK(overlapping == wanted);
}

TEST_CASE("the layers of a stack enqueue their runs of iterations by turns, each as soon as the layer before it has") {
  const auto device = make_device(Place::parse(test_place()), 1, 4);
  constexpr std::int64_t iterations = 600, hidden = 8;
  Random random(3);
  const Program program = stack_of(random, 4, hidden);
  const Feeds feeds = rows_of(random, {iterations, iterations / 2, 0, iterations});
  const Executable executable(program, device);
  // The fills of a layer's first states must not stand behind another layer.
  std::map<std::size_t, int> loops, fills;
  for (const CompiledOp& op : executable.compiled().block(0).ops) {
    if (op.kind == CompiledOp::Kind::while_loop) ++loops[op.stream];
    if (op.op->type == "constant_rows") ++fills[op.stream];
  }
  CHECK(loops == std::map<std::size_t, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  for (const std::size_t layer : {1, 2, 3}) CHECK(fills[layer] >= 2);
  const RunResult expected = run_in(Backend::interpreted, program, feeds, device);
  ThreadExecutor executor(1);
  Tracer tracer;
  RunOptions options;
  options.backend = Backend::fused;
  options.tracer = &tracer;
  const RunResult result = sync_wait(executor, run(executable, feeds, options));
  CHECK(result.fused_loops == 4);
  CHECK(same_bits(result.value("y").tensor(), expected.value("y").tensor()));
  std::map<std::string, std::vector<Tracer::Event>> by_layer;
  for (const Tracer::Event& run : tracer.events("iterations")) by_layer[run.name.substr(0, run.name.find(','))].push_back(run);
  // The first layer, whose input is there, is enqueued as a whole.
  REQUIRE(by_layer.size() == 3);
  std::vector<std::vector<Tracer::Event>> layers;
  for (auto& [name, runs] : by_layer) layers.push_back(runs);
  std::sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) { return a.front().begin_ns < b.front().begin_ns; });
  for (std::size_t i = 0; i < layers.size(); ++i) {
    CHECK(layers[i].size() > 2);
    if (i > 0) CHECK(layers[i].front().begin_ns < layers[i - 1].back().begin_ns);
    if (i > 0) CHECK(layers[i].back().begin_ns > layers[i - 1].back().begin_ns);
  }
}

TEST_CASE("a stack of more layers than the device has streams has the same bits") {
  const auto device = make_device(Place::parse(test_place()), 1, 3);
  Random random(5);
  const Program program = stack_of(random, 7, 5);
  compare(program, rows_of(random, {150, 0, 299, 20}), 7, device);
}

TEST_CASE("a loop that is more than an LSTM cell between ops on rows says why it stays iteration by iteration on a device") {
  const auto reason = [](const std::function<layers::CellStep(const Var&, const std::vector<Var>&, const layers::Cell&)>& iteration) {
    Random random(1);
    const layers::LstmWeights weights = random_lstm_weights(random, DType::f32, 4, 4);
    Program program;
    {
      const Guard guard(program);
      const layers::Cell cell = layers::lstm_cell(weights);
      const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
      build::output("y", layers::unroll([&](const Var& row, const std::vector<Var>& state) { return iteration(row, state, cell); }, {x},
                                        {{4, Var()}, {4, Var()}})
                             .output);
    }
    for (const Op& op : program.block(0).ops) {
      if (op.type != "while") continue;
      try {
        return LstmLoop(program, 0, op).to_string();
      } catch (const UnsupportedError& error) {
        return std::string(error.what());
      }
    }
    return std::string();
  };
  using Step = layers::CellStep;
  CHECK(reason([](const Var& x, const std::vector<Var>& s, const layers::Cell& cell) {
          return cell(x, s);
        }).find("as one kernel: the cell") != std::string::npos);
  CHECK(reason([](const Var& x, const std::vector<Var>& s, const layers::Cell& cell) {
          return cell(x, {tanh(s[0]), s[1]});
        }).find("the only cell with a kernel is lstm_cell") != std::string::npos);
  CHECK(reason([](const Var& x, const std::vector<Var>& s, const layers::Cell& cell) {
          const Step next = cell(x, s);
          return Step{next.output, {next.states[0], tanh(next.states[1])}};
        }).find("what it makes of the iteration before") != std::string::npos);
}

}  // namespace millrace::testing
