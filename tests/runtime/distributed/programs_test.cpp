// SPDX-License-Identifier: Apache-2.0
// The layers of a network as programs on ranks of their own: each loop reads an array that another rank writes, and they run as a wavefront.

#include <doctest/doctest.h>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/distributed/local.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>
#include <runtime/distributed/layer_arrays.h>
#include <support/program_runs.h>

using namespace millrace;
using testing::borrow, testing::seeds, testing::SimDevice;

namespace {

constexpr std::int64_t hidden = 3;

Tensor weights(int layer, int which) {
  testing::Random random(static_cast<std::uint64_t>(10 * layer + which));
  std::vector<float> values;
  for (int i = 0; i < hidden * hidden; ++i) values.push_back(random.real());
  return Tensor::from(values, {hidden, hidden});
}

/// h = tanh(x W + h U), step by step from array `in` to array `out`.
void append_layer(const build::ArrayVar& in, const build::ArrayVar& out, const build::Var& steps, int layer) {
  const build::Var w = build::parameter("w" + std::to_string(layer), weights(layer, 0));
  const build::Var u = build::parameter("u" + std::to_string(layer), weights(layer, 1));
  build::Var step = build::constant(0);
  build::Var state = build::constant(Tensor::from(std::vector<float>(hidden, 0), {1, hidden}));
  build::WhileLoop loop = build::while_loop({step, state});
  const auto frame = loop.frame();
  loop.break_if(equal(step, steps));
  state.update(tanh(matmul(in.read(step), w) + matmul(state, u)));
  out.write(step, state);
  step.update(step + 1);
}

/// One layer between arrays that are fed: the caller fills the one and reads the other while the loop iterations.
Program one_layer(int layer) {
  Program program;
  program.set_title("layer " + std::to_string(layer));
  const build::Guard guard(program);
  const VarType array = VarType::array_of(DType::f32, DDim{1, hidden}, false);
  const build::ArrayVar in = build::ArrayVar::of(build::input("in", array));
  const build::ArrayVar out = build::ArrayVar::of(build::input("out", array));
  const build::Var steps = in.size();
  append_layer(in, out, steps, layer);
  build::output("steps", steps);
  return program;
}

/// All layers, in one program on one device.
Program all_layers(int layers) {
  Program program;
  program.set_title("all layers");
  const build::Guard guard(program);
  build::ArrayVar in = build::ArrayVar::of(build::input("in", VarType::array_of(DType::f32, DDim{1, hidden}, false)));
  const build::Var steps = in.size();
  for (int layer = 0; layer < layers; ++layer) {
    const build::ArrayVar out = build::ArrayVar::typed(steps, VarType(DType::f32, {1, hidden}), "h" + std::to_string(layer));
    append_layer(in, out, steps, layer);
    in = out;
  }
  build::output("y", in.stack());
  return program;
}

TensorArray rows(std::int64_t steps) {
  testing::Random random(5);
  const TensorArray made = TensorArray(steps).named("x");
  for (std::int64_t t = 0; t < steps; ++t)
    static_cast<void>(made.write(t, Tensor::from<float>({random.real(), random.real(), random.real()}).reshape({1, hidden})));
  return made;
}

task<std::string> on_rank(Communicator* communicator, std::int64_t steps, std::int64_t run_of, Device* device) {
  TaskInfo& me = co_await this_task::info();
  const int rank = communicator->rank();
  const bool last = rank + 1 == communicator->world_size();
  Scope scope(me);
  const testing::LayerArrays arrays(rows(steps), scope, *communicator, run_of, device->stream(1));
  Feeds feeds;
  feeds.emplace("in", arrays.in);
  feeds.emplace("out", arrays.out);
  const Executable executable(one_layer(rank), borrow(*device));
  const RunResult ended = co_await run(executable, std::move(feeds));
  co_await scope.join();
  if (!last) co_return std::string();
  const Tensor y = co_await arrays.out.stack(device->stream(0));
  const Point there = y.ready();
  co_await ready(there);
  const Tensor host = y.copy_to(CpuPlace{});
  co_return std::string(static_cast<const char*>(host.raw()), host.bytes());
}

}  // namespace

TEST_CASE("layers as programs on ranks and devices of their own give the bits of one program on one device, and their iterations overlap") {
  constexpr std::int64_t steps = 12;
  constexpr int layers = 3;
  const RunResult whole = testing::on_cpu(all_layers(layers), {{"in", rows(steps)}});
  const std::string wanted(static_cast<const char*>(whole["y"].tensor().raw()), whole["y"].tensor().bytes());
  std::size_t overlapping = 0;
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    Tracer tracer;
    std::vector<std::unique_ptr<SimDevice>> devices;
    const auto ranks = make_local_communicators(layers);
    std::vector<Running<std::string>> runs;
    for (int r = 0; r < layers; ++r) {
      devices.push_back(std::make_unique<SimDevice>(SimDevice::Options{.index = r, .late = seed % 2 == 0}));
      executor.add_source(*devices.back());
      runs.push_back(start_run(
          executor, on_rank(ranks[static_cast<std::size_t>(r)].get(), steps, 1 + static_cast<std::int64_t>(seed % 3), devices.back().get()),
          "rank " + std::to_string(r), &tracer));
    }
    executor.run();
    CHECK(runs.back().get() == wanted);
    for (int r = 0; r + 1 < layers; ++r) CHECK_NOTHROW(static_cast<void>(runs[static_cast<std::size_t>(r)].get()));
    // A slot arrives on rank 2, two layers on, before the last one has arrived on rank 1.
    bool seen_on_2 = false, overlaps = false;
    for (const Tracer::Event& event : tracer.events("slot")) {
      seen_on_2 = seen_on_2 || event.name == "h1[0] on rank 2";
      overlaps = overlaps || (seen_on_2 && event.name == "h0[" + std::to_string(steps - 1) + "] on rank 1");
    }
    overlapping += overlaps;
    for (const auto& device : devices) executor.remove_source(*device);
  }
  CHECK(overlapping > 0);
}
