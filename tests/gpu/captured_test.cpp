// SPDX-License-Identifier: Apache-2.0
// Loops as graphs of the device give the bits that they give there iteration by iteration.
#include <millrace/runtime/loops/cuda_graph/captured_loop.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/cuda_device.h>
#include <runtime/loops/cpu_fused/fused_cells.h>
#include <support/listing.h>
#include <support/random_lod.h>

namespace millrace::testing {
namespace {

using build::while_loop;

RunOptions on_backend(Backend backend, bool required = true) {
  RunOptions options;
  options.backend = backend;
  options.backend_required = required;
  return options;
}

RunResult run_in(const Executable& executable, const Feeds& feeds, RunOptions options) {
  ThreadExecutor executor(1);
  return sync_wait(executor, run(executable, feeds, options));
}

std::shared_ptr<Device> device_with(std::size_t streams, bool tf32 = false) {
  CudaOptions options;
  options.tf32 = tf32;
  options.streams = streams;
  return make_cuda_device(options);
}

/// Runs iteration by iteration, and captured several times: equal bits and iterations. Gives how many loops were captured.
std::int64_t compare_captured(const Program& program, const Feeds& feeds, const std::shared_ptr<Device>& device, bool required = true) {
  const Executable executable(program, device);
  const RunResult wanted = run_in(executable, feeds, on_backend(Backend::interpreted));
  CHECK(wanted.captured_loops == 0);
  std::int64_t captured = 0;
  for (int again = 0; again < 2; ++again) {
    const RunResult found = run_in(executable, feeds, on_backend(Backend::captured, required));
    CHECK(bits(found) == bits(wanted));
    CHECK(found.iterations == wanted.iterations);
    captured = found.captured_loops;
  }
  return captured;
}

std::uint64_t random_programs() {
  const char* wanted = std::getenv("MILLRACE_RANDOM_PROGRAMS");
  return wanted == nullptr ? 25 : std::strtoull(wanted, nullptr, 10);
}

/// A loop over ragged rows, drawn at random: a random cell, states in arrays with a boot or carried, one or two inputs, what is outside or
/// the same for each sequence, sorted or in the caller's order.
struct RandomLoop {
  explicit RandomLoop(std::uint64_t seed) : random(seed * 104729) {
    const Guard guard(program);
    lod = random_lod(random, 1, 7);
    const std::int64_t c = random.between(1, 9);
    for (std::int64_t states = random.between(1, 3); states > 0; --states) widths.push_back(random.between(1, 12));
    x = rows("x", c);
    const bool second = random.coin();
    const bool sorted = random.coin();
    const auto [steps, order] = unpack(x, 0, sorted);
    std::vector<build::TensorArray> inputs{steps};
    if (second) inputs.push_back(unpack(rows("z", c), 0, sorted).first);
    build_loop(inputs, order, RandomCell(seed, widths));
  }

  Var rows(const std::string& name, std::int64_t width) {
    feeds.insert_or_assign(name, LoDTensor(random_tensor(random, {lod.rows(), width}), lod));
    return input(name, VarType(DType::f32, {DDim::unknown, width}, 1));
  }
  /// A row for each sequence.
  Var boot(std::size_t at) {
    const std::string name = "boot" + std::to_string(at);
    const std::int64_t width = at < widths.size() ? widths[at] : widths[0];
    feeds.insert_or_assign(name, LoDTensor(random_tensor(random, {lod.sequences(0), width})));
    return input(name, VarType(DType::f32, {DDim::unknown, width}));
  }

  void build_loop(const std::vector<build::TensorArray>& inputs, const build::Order& order, RandomCell cell) {
    const Var n = inputs[0].size();
    const build::TensorArray outputs(n, order, "outputs");
    std::vector<build::TensorArray> arrays;
    std::vector<Var> boots;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      boots.push_back(boot(i));
      arrays.emplace_back(n, order, "state" + std::to_string(i));
    }
    const Var fixed = random.coin() ? call1("reorder", {boot(widths.size()), order.var()}) : Var();
    const Var scale = random.coin() ? input("scale", VarType(DType::f32, {})) : Var();
    if (scale.defined()) feeds.insert_or_assign("scale", LoDTensor(Tensor::scalar(0.75f)));
    Var step = constant(0);
    auto loop = while_loop({step});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      Var now = inputs[0].read(step);
      std::vector<Var> states;
      for (std::size_t i = 0; i < arrays.size(); ++i) states.push_back(shrink(arrays[i].read(step - 1, boots[i]), now));
      if (fixed.defined()) states[0] = states[0] + shrink(fixed, now);
      if (inputs.size() > 1) now = now - inputs[1].read(step);
      if (scale.defined()) now = now * scale;
      const CellStep made = cell(now, states);
      for (std::size_t i = 0; i < arrays.size(); ++i) arrays[i].write(step, made.states[i]);
      outputs.write(step, made.output);
      step.update(step + 1);
    }
    output("y", pack(outputs, 0, order));
    for (std::size_t i = 0; i < arrays.size(); ++i)
      if (random.coin()) output("state" + std::to_string(i), pack(arrays[i], 0, order));
    output("iterations", step);
  }

  Random random;
  Program program;
  Feeds feeds;
  LoD lod;
  std::vector<std::int64_t> widths;
  Var x;
};

/// A dense loop of so many iterations that carries one value of the shape of `x`.
Program carrying(const std::function<Var(const Var& x, const Var& now)>& iteration, const DDim& dims, DType dtype = DType::f32) {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(dtype, dims));
  const Var slots = input("slots", VarType(dtype, dims.inserted(0, DDim::unknown)));
  const build::TensorArray in = build::TensorArray::unstack(slots);
  const Var n = in.size();
  const build::TensorArray out(n, "out");
  Var step = constant(0);
  Var state = x;
  auto loop = while_loop({step, state});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const Var next = iteration(state, in.read(step));
    out.write(step, next);
    state.update(next);
    step.update(step + 1);
  }
  output("y", out.stack());
  output("last", state);
  return program;
}

Feeds carried_feeds(Random& random, const DDim& dims, std::int64_t iterations, DType dtype = DType::f32) {
  CpuDevice host;
  const auto drawn = [&](const DDim& of) { return LoDTensor(cast(random_tensor(random, of), dtype, host.stream(0))); };
  return {{"x", drawn(dims)}, {"slots", drawn(dims.inserted(0, iterations))}};
}

}  // namespace

TEST_CASE("programs drawn at random have the bits of their iterations one by one when the device turns them, whatever its streams") {
  const std::shared_ptr<Device> devices[] = {device_with(1), device_with(4), device_with(2, true)};
  std::uint64_t compared = 0;
  for (std::uint64_t seed = 1; compared < random_programs(); ++seed) {
    INFO("seed ", seed);
    try {
      const RandomLoop drawn(seed);
      const std::int64_t captured = compare_captured(drawn.program, drawn.feeds, devices[seed % 3]);
      CHECK(captured == (drawn.lod.rows() > 0 ? 1 : 0));
      ++compared;
    } catch (const PlaceError& error) {  // int8 weights
      CHECK(std::string(error.what()).find("there is no CUDA kernel of it yet") != std::string::npos);
    }
  }
}

TEST_CASE("dense loops of any shape and dtype are captured, and no iterations are none") {
  const auto device = device_with(2);
  Random random(3);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Program program = carrying([](const Var& x, const Var& now) { return tanh(x * now) + x; }, {2, 3, 2}, dtype);
    for (const std::int64_t iterations : {1, 2, 33, 100})
      CHECK(compare_captured(program, carried_feeds(random, {2, 3, 2}, iterations, dtype), device) == 1);
    CHECK(compare_captured(program, carried_feeds(random, {2, 3, 2}, 0, dtype), device) == 0);
  }
}

TEST_CASE(
    "rows that look at one another are captured where all iterations have the same, and else run iteration by iteration for a reason") {
  const auto device = device_with(2);
  Random random(4);
  const auto coupled = [](const Var& x, const Var& now) { return tanh(x + reduce(now, "sum", {0}, true)); };
  CHECK(compare_captured(carrying(coupled, {3, 4}), carried_feeds(random, {3, 4}, 9), device) == 1);
  const CellCase each{"coupled", 3, {3}, [&](const Var& x, const std::vector<Var>& s) {
                        const Var y = coupled(s[0], x);
                        return CellStep{y, {y}};
                      }};
  const Program ragged = over_rows(each, true, false);
  const Feeds feeds = feeds_for(random, each, LoD::from_lengths({{3, 1, 2}}), true);
  CHECK(compare_captured(ragged, feeds, device, false) == 0);
  const Executable executable(ragged, device);
  const RunResult found = run_in(executable, feeds, on_backend(Backend::automatic, false));
  REQUIRE(found.iteration_by_iteration.size() == 1);
  CHECK(found.iteration_by_iteration.begin()->find("op reduce") != std::string::npos);
  CHECK_THROWS_WITH_AS(run_in(executable, feeds, on_backend(Backend::captured)),
                       doctest::Contains("because iterations have fewer and fewer rows"), UnsupportedError);
  CHECK_THROWS_WITH_AS(run_in(executable, feeds, on_backend(Backend::fused)), doctest::Contains("no fused kernel for it on cuda:0"),
                       UnsupportedError);
  CHECK_THROWS_WITH_AS(run_in(Executable(ragged), feeds, on_backend(Backend::captured)), doctest::Contains("no graphs of kernels on cpu"),
                       UnsupportedError);
  const Feeds equal = feeds_for(random, each, LoD::from_lengths({{2, 2, 2}}), true);
  CHECK(compare_captured(ragged, equal, device) == 1);
}

TEST_CASE("what only the device sees in an iteration of a graph reaches whoever awaits the run") {
  const auto device = device_with(1);
  const Program program = carrying(
      [](const Var& x, const Var& now) {
        const Var table = parameter("table", Tensor::from<float>({1, 2, 3, 4}, {4, 1}));
        return x + call1("gather", {table, cast(reshape(now, {-1}), DType::i64)}, {{"axis", std::int64_t{0}}});
      },
      {2, 1});
  const auto feeds = [](float worst) {
    return Feeds{{"x", LoDTensor(Tensor::from<float>({0, 0}, {2, 1}))},
                 {"slots", LoDTensor(Tensor::from<float>({0, 1, 2, 3, 3, worst}, {3, 2, 1}))}};
  };
  CHECK(compare_captured(program, feeds(2), device) == 1);
  CHECK_THROWS_WITH_AS(run_in(Executable(program, device), feeds(9), on_backend(Backend::captured)), doctest::Contains("found 9"),
                       IndexError);
}

TEST_CASE("several runs of one program at a time take turns on its graphs") {
  const auto device = device_with(3);
  const RandomLoop drawn(12);
  const Executable executable(drawn.program, device);
  const std::string wanted = bits(run_in(executable, drawn.feeds, on_backend(Backend::interpreted)));
  std::vector<std::string> found(4);
  {
    std::vector<std::thread> threads;
    for (std::string& one : found)
      threads.emplace_back([&] {
        for (int i = 0; i < 5; ++i) one = bits(run_in(executable, drawn.feeds, on_backend(Backend::captured)));
      });
    for (std::thread& thread : threads) thread.join();
  }
  for (const std::string& one : found) CHECK(one == wanted);
}

TEST_CASE("a captured loop inside a loop, and one behind another, are each as they are iteration by iteration, whoever makes their count") {
  const auto device = device_with(2);
  Random random(5);
  Program program;
  {
    const Guard guard(program);
    const Var slots = input("slots", VarType(DType::f32, {DDim::unknown, 2, 3}));
    const build::TensorArray in = build::TensorArray::unstack(slots);
    const Var count = cast(input("count", VarType(DType::f32, {})), DType::i64);  // which the device computes
    Var outer = constant(0);
    Var sum = input("x", VarType(DType::f32, {2, 3}));
    auto loop = while_loop({outer, sum});
    {
      auto frame = loop.frame();
      loop.break_if(equal(outer, constant(3)));
      Var step = constant(0);
      Var state = sum;
      auto inner = while_loop({step, state});
      {
        auto inner_frame = inner.frame();
        inner.break_if(equal(step, count));
        state.update(tanh(state + in.read(step)));
        step.update(step + 1);
      }
      sum.update(state * 0.5f);
      outer.update(outer + 1);
    }
    const build::TensorArray first(in.size(), "first"), second(in.size(), "second");
    for (const auto& [from, to] : {std::pair{in, first}, std::pair{first, second}}) {
      Var step = constant(0);
      Var state = sum;
      auto layer = while_loop({step, state});
      {
        auto layer_frame = layer.frame();
        layer.break_if(equal(step, count));
        const Var next = sigmoid(state - from.read(step));
        to.write(step, next);
        state.update(next);
        step.update(step + 1);
      }
    }
    output("y", second.stack());
    output("sum", sum);
  }
  Feeds feeds = carried_feeds(random, {2, 3}, 6);
  feeds.insert_or_assign("count", LoDTensor(Tensor::scalar<float>(6)));
  CHECK(compare_captured(program, feeds, device, false) == 5);
}

TEST_CASE("a run that is given up takes its graph along, and the next one is whole") {
  const auto device = device_with(1);
  Program program;
  {
    const Guard guard(program);
    const Var n = input("n", VarType(DType::i64, {}));
    Var state = input("x", VarType(DType::f32, {2, 3}));
    Var step = constant(0);
    auto loop = while_loop({step, state});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      state.update(tanh(state + 0.125f));
      step.update(step + 1);
    }
    output("state", state);
  }
  const Executable executable(program, device);
  const auto feeds = [](std::int64_t iterations) {
    return Feeds{{"n", LoDTensor(Tensor::scalar(iterations))}, {"x", LoDTensor(Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}))}};
  };
  const std::string wanted = bits(run_in(executable, feeds(77), on_backend(Backend::interpreted)));
  RunOptions options = on_backend(Backend::captured);
  options.deadline = std::chrono::milliseconds(50);
  CHECK_THROWS_AS(run_in(executable, feeds(std::int64_t{1} << 50), options), DeadlineError);
  CHECK(bits(run_in(executable, feeds(77), on_backend(Backend::captured))) == wanted);
}

TEST_CASE("a trace shows a captured loop as one, and why another one is not") {
  const auto device = device_with(1);
  Random random(6);
  Tracer tracer;
  RunOptions options = on_backend(Backend::captured, false);
  options.tracer = &tracer;
  const Program program = carrying([](const Var& x, const Var& now) { return x + now; }, {2, 2});
  run_in(Executable(program, device), carried_feeds(random, {2, 2}, 4), options);
  CHECK(tracer.to_json().find(", captured") != std::string::npos);
  const Program by_count =
      carrying([](const Var& x, const Var& now) { return where(greater(reduce(now, "sum", {0, 1}), constant(0.0f)), x, now); }, {2, 2});
  CHECK(run_in(Executable(by_count, device), carried_feeds(random, {2, 2}, 4), on_backend(Backend::captured)).captured_loops == 1);
  const RandomLoop drawn(1);
  run_in(Executable(drawn.program), drawn.feeds, options);
  CHECK(tracer.to_json().find("iteration by iteration, because there are no graphs of kernels on cpu") != std::string::npos);
}

}  // namespace millrace::testing
