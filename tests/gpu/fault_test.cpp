// SPDX-License-Identifier: Apache-2.0
// A kernel that traps takes its device with it for the rest of the process, so each such test is a process of its own.
#include <millrace/runtime/runtime.h>

#include <chrono>
#include <ctime>
#include <string>
#include <thread>

#include <boost/asio/use_future.hpp>

#include <doctest/doctest.h>

#include <gpu/scenario.h>
#include <gpu/spin.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/runtime/array/slab.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/cuda_device.h>
#include <support/test_place.h>

namespace millrace::testing {
namespace {

using std::chrono::steady_clock;

/// Standard ops and `trap`, which traps on a device; on the CPU it gives its input.
std::shared_ptr<const OpRegistry> with_trap() {
  OpDef def;
  def.name = "trap";
  def.inputs = {"X"};
  def.outputs = {"Out"};
  def.infer = [](InferContext& context) { context.result(context.tensor(0)); };
  def.pure = false;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      if (run.stream().place().is_cpu()) return run.set(0, run.in(0));
      run.set(0, add(run.tensor(0), trap(run.stream()), run.stream()));
    };
  };
  auto ops = std::make_shared<OpRegistry>(*standard_ops());
  ops->add(std::move(def));
  return ops;
}

Program trapping() {
  Program program(with_trap());
  const VarId x = program.add_input("x", VarType(DType::f32, DDim{2}));
  const VarId sum = program.append(0, Op{"add", {x, x}, {}, {}, {}}).at(0);
  const VarId out = program.append(0, Op{"trap", {sum}, {}, {}, {}}).at(0);
  program.add_output("y", program.append(0, Op{"add", {out, x}, {}, {}, {}}).at(0));
  return program;
}

Program doubling() {
  Program program;
  const VarId x = program.add_input("x", VarType(DType::f32, DDim{2}));
  program.add_output("y", program.append(0, Op{"add", {x, x}, {}, {}, {}}).at(0));
  return program;
}

Feeds two() { return {{"x", LoDTensor(Tensor::from<float>({1, 2}))}}; }

std::vector<float> numbers(const RunResult& result) { return result.value("y").tensor().tensor().copy_to(CpuPlace{}).to_vector<float>(); }

/// The error that the run ends with, its result being brought to the host; empty without one.
std::string error_of(Runtime& runtime, const Executable& executable) {
  try {
    numbers(runtime.async_run(executable, two(), asio::use_future).get());
    return "";
  } catch (const CudaError& error) {
    CHECK(error.is_sticky());
    return error.what();
  }
}

task<void> await_point(Point point) { co_await ready(point); }

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void trapping_program() {
  const auto begin = steady_clock::now();
  {
    RuntimeOptions options;
    options.threads = 2;
    options.devices = {make_device(Place::parse(test_place()))};
    Runtime runtime(options);
    const Executable good = runtime.compile(doubling(), CudaPlace{0}), bad = runtime.compile(trapping(), CudaPlace{0});
    CHECK(numbers(runtime.async_run(good, two(), asio::use_future).get()) == std::vector<float>{2, 4});
    const std::string error = error_of(runtime, bad);
    INFO("error: ", error);
    CHECK(error.find("on cuda:0") != std::string::npos);
    CHECK(error.find("cudaErrorLaunchFailure") != std::string::npos);
    // Later work is told at once, with CUDA's own word for it.
    const std::string again = error_of(runtime, good);
    INFO("then: ", again);
    CHECK(again.find("cudaErrorLaunchFailure") != std::string::npos);
    CHECK(numbers(runtime.async_run(runtime.compile(doubling()), two(), asio::use_future).get()) == std::vector<float>{2, 4});
    CHECK(numbers(runtime.async_run(runtime.compile(trapping()), two(), asio::use_future).get()) == std::vector<float>{3, 6});
  }
  CHECK(steady_clock::now() - begin < std::chrono::seconds(30));
}

void trapped_point() {
  const auto device = make_device(Place::parse(test_place()));
  ThreadExecutor executor(1);
  const StreamRef stream = device->stream(0);
  const Tensor before = ones(DDim{2}, DType::f32, stream);
  sync_wait(executor, await_point(before.ready()));
  const Tensor sum = add(before, before, stream);
  const Tensor lost = trap(stream);
  for (int i = 0; i < 2; ++i) {
    try {
      sync_wait(executor, await_point(lost.ready()));
      FAIL("no error");
    } catch (const CudaError& error) {
      INFO("error: ", std::string(error.what()));
      CHECK(error.is_sticky());
      CHECK(std::string(error.what()).find("on cuda:0") != std::string::npos);
      CHECK(std::string(error.what()).find("behind the kernels") != std::string::npos);
      CHECK(std::string(error.what()).find("Arithmetic, Trap") != std::string::npos);
    }
  }
  CHECK(before.ready().reached());
  // Other streams of the device are lost too: what is enqueued there is refused, or its point fails.
  CHECK_THROWS_AS(sync_wait(executor, await_point(add(sum, lost, device->stream(1)).ready())), CudaError);
}

void trap_among_many() {
  const auto device = make_device(Place::parse(test_place()));
  ThreadExecutor executor(2);
  std::vector<Tensor> made;
  for (std::size_t i = 0; i < 4; ++i) made.push_back(ones(DDim{1000}, DType::f32, device->stream(i)));
  for (std::size_t i = 0; i < 40; ++i) {
    const StreamRef stream = device->stream(i);
    if (i == 17) made[1] = trap(stream);
    try {
      made[i % 4] = add(made[i % 4], made[(i + 1) % 4], stream);
    } catch (const Error&) {  // the device is known to be lost by now, or [2] and [1000] are not of one kind
    }
  }
  std::size_t failed = 0;
  for (const Tensor& each : made) {
    try {
      sync_wait(executor, await_point(each.ready()));
    } catch (const Error&) {
      ++failed;
    }
  }
  CHECK(failed > 0);
}

void trap_between_steps() {
  const auto device = make_device(Place::parse(test_place()), 1, 2);
  ThreadExecutor executor(1);
  const auto watermark = device->stream(0).watermark(8);
  SteppedWork work;
  work.nanoseconds = 20'000'000;
  work.traps_at = 5;
  const Tensor stamps = stepped(work, watermark, device->stream(0));
  const Tensor behind = part_of(stamps.rows(7, 8), Point(watermark, 8));
  const Tensor lost = add(behind, behind, device->stream(1));
  CHECK_THROWS_AS(sync_wait(executor, await_point(Point(watermark, 8))), CudaError);
  CHECK_THROWS_AS(Point(watermark, 7).wait(), CudaError);
  CHECK_THROWS_AS(sync_wait(executor, await_point(lost.ready())), CudaError);
}

const Scenario scenarios[] = {
    {"a program whose kernel traps fails, other places go on, and the runtime ends", trapping_program},
    {"whoever awaits a point behind a kernel that trapped is told what the stream was doing", trapped_point},
    {"a trap leaves nobody waiting while several coroutines await and memory comes back", trap_among_many},
    {"a kernel that traps between two steps fails whoever waits for its watermark", trap_between_steps},
};

}  // namespace

TEST_CASE("a kernel that traps reaches whoever awaits it, and the process says so and leaves") {
  CHECK(ScenarioProcess("a program whose kernel traps fails, other places go on, and the runtime ends").ended_with() == 0);
  CHECK(ScenarioProcess("whoever awaits a point behind a kernel that trapped is told what the stream was doing").ended_with() == 0);
  CHECK(ScenarioProcess("a trap leaves nobody waiting while several coroutines await and memory comes back").ended_with() == 0);
  CHECK(ScenarioProcess("a kernel that traps between two steps fails whoever waits for its watermark").ended_with() == 0);
}

TEST_CASE("a run that finds no memory fails with the sizes and the op, and the next one is right") {
  CudaOptions options;
  options.budget = std::size_t{4} << 20;
  const std::shared_ptr<Device> device = make_cuda_device(options);
  ThreadExecutor executor(2);
  Program program;
  const VarId x = program.add_input("x", VarType(DType::f32, DDim{DDim::unknown}));
  const VarId sum = program.append(0, Op{"add", {x, x}, {}, {}, {}}).at(0);
  program.add_output("y", program.append(0, Op{"add", {sum, x}, {}, {}, {}}).at(0));
  const Executable executable(program, device);
  const auto run_with = [&](std::int64_t elements) {
    const Tensor ones_there = Tensor::from(std::vector<float>(static_cast<std::size_t>(elements), 1.0f), DDim{elements});
    return numbers(sync_wait(executor, run(executable, {{"x", LoDTensor(ones_there)}}, RunOptions())));
  };
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS_WITH_AS(run_with(1 << 19), doctest::Contains("memory on cuda:0: 2097152 bytes"), OutOfMemoryError);
    CHECK_THROWS_WITH_AS(run_with(1 << 19), doctest::Contains("op add"), OutOfMemoryError);
    CHECK(run_with(1 << 17) == std::vector<float>(1 << 17, 3.0f));
  }
}

TEST_CASE("waiting for a device takes next to no processor time, however long it works") {
  const auto device = make_device(Place::parse(test_place()));
  ThreadExecutor executor(1);
  sync_wait(executor, await_point(doze(0, device->stream(0)).ready()));
  const double begin = processor_seconds();
  // Two streams at once: the waiter naps while both work, longer the longer it has waited.
  for (int i = 0; i < 2; ++i) {
    const Tensor first = doze(100'000'000, device->stream(0)), second = doze(200'000'000, device->stream(1));
    sync_wait(executor, await_point(first.ready()));
    sync_wait(executor, await_point(second.ready()));
  }
  // 0.4 s of work, in which a waiter that spins spends all of it.
  const double spent = processor_seconds() - begin;
  INFO("spent ", spent, " s");
  CHECK(spent < 0.2);
}

TEST_CASE("a runtime with a device that nothing runs on uses no processor time") {
  RuntimeOptions options;
  options.devices = {make_device(Place::parse(test_place()))};
  Runtime runtime(options);
  CHECK(numbers(runtime.async_run(runtime.compile(doubling(), CudaPlace{0}), two(), asio::use_future).get()) == std::vector<float>{2, 4});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double begin = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(processor_seconds() - begin < 0.05);
}

}  // namespace millrace::testing
