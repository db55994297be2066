// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/runtime.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/frame_pool.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <support/completion_tokens.h>
#include <support/sim_device.h>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

/// v ← v · 2 + x, n times.
Program doubling(std::int64_t iterations) {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}));
  build::Var step = build::constant(0);
  build::Var v = x * 1.0f;
  auto loop = build::while_loop({step, v});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, build::constant(iterations)));
    v.update(v * 2.0f + x);
    step.update(step + 1);
  }
  build::output("v", v);
  return program;
}

/// Reads slot 0 of an array that somebody else fills.
Program waiting() {
  Program program;
  const build::Guard guard(program);
  const build::ArrayVar array = build::ArrayVar::of(build::input("array", VarType::array_of(DType::f32, DDim{1}, false)));
  build::output("first", array.read(build::constant(0)));
  return program;
}

Feeds ones_of(std::int64_t rows) {
  return {{"x", Tensor::from<float>(std::vector<float>(static_cast<std::size_t>(rows * 3), 1.0f), {rows, 3})}};
}

}  // namespace

TEST_CASE("a runtime runs a program on threads of its own") {
  Runtime runtime;
  RunResult result = runtime.async_run(doubling(3), ones_of(2), asio::use_future).get();
  CHECK(result["v"].tensor().to_vector<float>() == std::vector<float>(6, 15.0f));
  CHECK(result.iterations == 3);
}

TEST_CASE("one executable serves many runs at once, with the same bits for any number of threads and streams") {
  std::vector<float> wanted;
  for (const std::size_t threads : {1, 2, 3}) {
    RuntimeOptions options;
    options.threads = threads;
    options.kernel_threads = threads;
    options.streams = 2 * threads;
    Runtime runtime(options);
    const Executable executable = runtime.compile(doubling(40));
    std::vector<std::future<RunResult>> running;
    for (int i = 0; i < 20; ++i) running.push_back(runtime.async_run(executable, ones_of(5), asio::use_future));
    for (std::future<RunResult>& run : running) {
      const std::vector<float> values = run.get()["v"].tensor().to_vector<float>();
      if (wanted.empty()) wanted = values;
      CHECK(values == wanted);
    }
  }
}

TEST_CASE("a run that fails leaves the runs of the same executable beside it, and behind it, as they are") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}));
    build::Var sum = x;
    for (int i = 0; i < 20; ++i) sum = build::tanh(sum) + x;
    build::output("y", build::gather(sum, build::input("index", VarType(DType::i64, {DDim::unknown})), 0));
  }
  RuntimeOptions options;
  options.threads = 4;
  options.kernel_threads = 2;
  Runtime runtime(options);
  const Executable executable = runtime.compile(program);
  const auto feeds = [](float value, std::int64_t index) {
    return Feeds{{"x", Tensor::from<float>(std::vector<float>(200, value), {100, 2})}, {"index", Tensor::from<std::int64_t>({index})}};
  };
  const auto result = [](RunResult made) { return made["y"].tensor().to_vector<float>(); };
  const std::vector<float> wanted = result(runtime.async_run(executable, feeds(0.5f, 3), asio::use_future).get());
  for (int round = 0; round < 50; ++round) {
    std::vector<std::future<RunResult>> running;
    for (int i = 0; i < 8; ++i) running.push_back(runtime.async_run(executable, feeds(0.5f, i % 4 == 1 ? 1000 : 3), asio::use_future));
    for (std::size_t i = 0; i < running.size(); ++i) {
      if (i % 4 == 1)
        CHECK_THROWS_AS(running[i].get(), Error);
      else
        CHECK(result(running[i].get()) == wanted);
    }
  }
}

TEST_CASE("async_run takes every kind of completion token, on the embedder's context") {
  asio::io_context context(1);
  RuntimeOptions options;
  options.context = &context;
  Runtime runtime(options);
  const Executable executable = runtime.compile(doubling(3));
  check_completion_tokens(
      context, [&]<class Token>(Token&& token) { return runtime.async_run(executable, ones_of(2), std::forward<Token>(token)); });
  check_completion_tokens(
      context, [&]<class Token>(Token&& token) { return runtime.async_run(doubling(2), ones_of(1), std::forward<Token>(token)); });
  CHECK(runtime.live_runs() == 0);
}

TEST_CASE("an error of a run, and of a program that cannot be compiled, reaches the handler") {
  asio::io_context context(1);
  RuntimeOptions options;
  options.context = &context;
  Runtime runtime(options);
  std::exception_ptr error;
  runtime.async_run(doubling(3), {}, [&](std::exception_ptr failed, const RunResult&) { error = failed; });
  context.run();
  REQUIRE(error != nullptr);
  CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("input 'x'"), ArgumentError);
}

TEST_CASE("cancelling through the slot ends a run that waits") {
  asio::io_context context(1);
  RuntimeOptions options;
  options.context = &context;
  Runtime runtime(options);
  const TensorArray array(1);
  const ArrayWriter outside = array.feeder("outside");
  check_cancellation(
      context, [&](auto handler) { runtime.async_run(waiting(), {{"array", array}}, std::move(handler)); },
      [](const std::exception_ptr& error, const RunResult&) { CHECK_THROWS_AS(std::rethrow_exception(error), CancelledError); });
  CHECK(runtime.live_runs() == 0);
}

TEST_CASE("an array that is fed from outside keeps its run waiting, until the value comes or its feeder goes") {
  Runtime runtime;
  const TensorArray array = TensorArray(1).named("speech");
  auto feeder = std::make_unique<ArrayWriter>(array.feeder("socket"));
  auto fed = runtime.async_run(waiting(), {{"array", array}}, asio::use_future);
  CHECK(fed.wait_for(20ms) == std::future_status::timeout);
  feeder->write(0, Tensor::from<float>({5}));
  CHECK(fed.get()["first"].tensor().item() == 5);

  const TensorArray never = TensorArray(1).named("silence");
  feeder = std::make_unique<ArrayWriter>(never.feeder("socket"));
  auto starved = runtime.async_run(waiting(), {{"array", never}}, asio::use_future);
  CHECK(starved.wait_for(20ms) == std::future_status::timeout);
  feeder.reset();
  CHECK_THROWS_WITH_AS(starved.get(), doctest::Contains("'socket' (which wrote nothing)"), NeverWrittenError);
}

TEST_CASE("a runtime that goes away cancels its runs and waits for their ends") {
  const std::size_t frames = live_frames();
  const TensorArray array(1);
  const ArrayWriter outside = array.feeder("outside");
  std::future<RunResult> result;
  {
    Runtime runtime;
    result = runtime.async_run(waiting(), {{"array", array}}, asio::use_future);
    while (runtime.live_runs() == 0) std::this_thread::sleep_for(1ms);
  }
  CHECK_THROWS_AS(result.get(), CancelledError);
  CHECK(live_frames() == frames);
}

TEST_CASE("a runtime has at most 1024 threads of each kind") {
  RuntimeOptions tasks, kernels;
  tasks.threads = kernels.kernel_threads = 1025;
  for (const RuntimeOptions& options : {tasks, kernels})
    CHECK_THROWS_WITH_AS(Runtime{options}, "runtime: expected at most 1024 threads, found 1025", ArgumentError);
}

TEST_CASE("a runtime knows its places, and says which there are") {
  RuntimeOptions options;
  options.devices.push_back(std::make_shared<SimDevice>());
  const Runtime runtime(options);
  CHECK(runtime.device()->place() == Place(CpuPlace{}));
  CHECK(runtime.device(Place::parse("sim:0")) == options.devices[0]);
  CHECK_THROWS_WITH_AS(runtime.device(Place::parse("cuda:0")), "runtime: expected one of the places cpu, sim:0, found cuda:0", PlaceError);
  options.devices.push_back(options.devices[0]);
  CHECK_THROWS_AS(Runtime{options}, ArgumentError);
  options.devices[1] = nullptr;
  CHECK_THROWS_WITH_AS(Runtime{options}, "runtime: expected devices, found a null pointer among them", ArgumentError);
}

TEST_CASE("an executor of the embedder's replays the runs of a runtime from its seed") {
  std::uint64_t trace = 0;
  for (int again = 0; again < 2; ++again) {
    SeededExecutor executor(7);
    const auto device = std::make_shared<SimDevice>();
    executor.add_source(*device);
    RuntimeOptions options;
    options.executor = &executor;
    options.devices.push_back(device);
    Runtime runtime(options);
    auto result = runtime.async_run(runtime.compile(doubling(5), device->place()), ones_of(2), asio::use_future);
    executor.run();
    CHECK(result.get()["v"].tensor().to_vector<float>() == std::vector<float>(6, 63.0f));
    if (again == 0) trace = executor.trace_hash();
    CHECK(executor.trace_hash() == trace);
    executor.remove_source(*device);
  }
}

TEST_CASE("several runtimes live side by side, and a traced one records its own runs") {
  RuntimeOptions options;
  options.trace = true;
  Runtime traced(options);
  Runtime other;
  traced.async_run(doubling(3), ones_of(1), asio::use_future).get();
  other.async_run(doubling(9), ones_of(1), asio::use_future).get();
  CHECK(other.tracer() == nullptr);
  REQUIRE(traced.tracer() != nullptr);
  CHECK(traced.tracer()->events("op").size() > 0);
}

namespace {

/// A run that waits for an array which nobody feeds, on the executor of `options`.
struct Waiting {
  explicit Waiting(const RuntimeOptions& options) : runtime(std::make_unique<Runtime>(options)) {
    runtime->async_run(waiting(), {{"array", array}}, [this](std::exception_ptr failed, const RunResult&) {
      error = failed;
      ++handled;
    });
  }
  bool cancelled() const {
    try {
      if (error != nullptr) std::rethrow_exception(error);
    } catch (const CancelledError&) {
      return true;
    }
    return false;
  }

  TensorArray array{1};
  ArrayWriter outside = array.feeder("outside");
  std::unique_ptr<Runtime> runtime;
  std::exception_ptr error;
  std::atomic<int> handled = 0;
};

}  // namespace

TEST_CASE("a runtime may be destroyed in a handler of the embedder's context while its runs live") {
  const std::size_t frames = live_frames();
  {
    asio::io_context context(1);
    RuntimeOptions options;
    options.context = &context;
    Waiting one(options);
    asio::post(context, [&] { asio::post(context, [&] { one.runtime.reset(); }); });
    context.run();
    CHECK(one.handled == 1);
    CHECK(one.cancelled());
    // Before the first step, too.
    context.restart();
    Waiting other(options);
    other.runtime.reset();
    context.run();
    CHECK(other.handled == 1);
    CHECK(other.cancelled());
  }
  CHECK(live_frames() == frames);
}

TEST_CASE("a runtime may be destroyed on a thread of its own while its runs live") {
  for (const std::size_t threads : {1, 2}) {
    RuntimeOptions options;
    options.threads = threads;
    Waiting one(options);
    std::promise<void> ended;
    // Without an executor of its own a handler is called on a thread of the runtime.
    one.runtime->async_run(doubling(2), ones_of(1), [&](const std::exception_ptr&, const RunResult&) {
      one.runtime.reset();
      ended.set_value();
    });
    ended.get_future().get();
    for (int i = 0; i < 2000 && one.handled == 0; ++i) std::this_thread::sleep_for(1ms);
    CHECK(one.handled == 1);
    CHECK(one.cancelled());
  }
}

TEST_CASE("cancel_all ends what was started, and a later run goes on") {
  asio::io_context context(1);
  RuntimeOptions options;
  options.context = &context;
  Waiting one(options);
  context.poll();
  CHECK(one.runtime->live_runs() == 1);
  Waiting queued(options);
  one.runtime->cancel_all();
  queued.runtime->cancel_all();
  int ran = 0;
  one.runtime->async_run(doubling(2), ones_of(1), [&](const std::exception_ptr& failed, const RunResult&) { ran += failed == nullptr; });
  context.run();
  CHECK(one.cancelled());
  CHECK(queued.cancelled());
  CHECK(ran == 1);
}

TEST_CASE("a run that is described before cancel_all and started after it goes on") {
  asio::io_context context(1);
  RuntimeOptions options;
  options.context = &context;
  Runtime runtime(options);
  auto later = runtime.async_run(doubling(2), ones_of(1), asio::deferred);
  runtime.cancel_all();
  int ran = 0;
  std::move(later)([&](const std::exception_ptr& failed, const RunResult&) { ran += failed == nullptr; });
  context.run();
  CHECK(ran == 1);
}

TEST_CASE("async_shutdown completes when nothing of the runs is left, whatever becomes of the runtime") {
  asio::io_context context(1);
  RuntimeOptions options;
  options.context = &context;
  for (const bool destroyed : {false, true}) {
    context.restart();
    Waiting one(options);
    context.poll();
    int down = 0;
    one.runtime->async_shutdown([&](const std::exception_ptr& failed) {
      CHECK(failed == nullptr);
      CHECK(one.handled == 1);
      ++down;
    });
    if (destroyed) one.runtime.reset();
    context.run();
    CHECK(down == 1);
    CHECK(one.cancelled());
    if (destroyed) continue;
    // Later runs are refused, and shutting down again is done at once.
    context.restart();
    std::exception_ptr refused;
    one.runtime->async_run(doubling(2), ones_of(1), [&](std::exception_ptr failed, const RunResult&) { refused = failed; });
    one.runtime->async_shutdown([&](const std::exception_ptr&) { ++down; });
    context.run();
    CHECK(down == 2);
    REQUIRE(refused != nullptr);
    CHECK_THROWS_AS(std::rethrow_exception(refused), CancelledError);
  }
  Runtime idle;
  idle.async_shutdown(asio::use_future).get();
}

TEST_CASE("an operation that is never started does not keep a runtime") {
  auto runtime = std::make_unique<Runtime>();
  auto operation = runtime->async_run(doubling(2), ones_of(1), asio::deferred);
  runtime.reset();
}

TEST_CASE("a runtime runs on any executor of Asio's: a thread pool, a strand of it, an any_io_executor") {
  asio::thread_pool pool(2);
  const asio::any_io_executor executors[] = {pool.get_executor(), asio::make_strand(pool.get_executor())};
  for (const asio::any_io_executor& executor : executors) {
    RuntimeOptions options;
    options.asio_executor = executor;
    Runtime runtime(options);
    std::vector<std::future<RunResult>> running;
    for (int i = 0; i < 8; ++i) running.push_back(runtime.async_run(doubling(30), ones_of(3), asio::use_future));
    for (std::future<RunResult>& run : running) CHECK(run.get()["v"].tensor().dims() == DDim{3, 3});
    options.context = nullptr;
    Waiting one(options);
    one.runtime->async_shutdown(asio::use_future).get();
    // Another thread of the pool may call the handler of the run.
    for (int i = 0; i < 20000 && one.handled == 0; ++i) std::this_thread::sleep_for(1ms);
    REQUIRE(one.handled == 1);
    CHECK(one.cancelled());
  }
  asio::io_context context;
  RuntimeOptions both;
  both.context = &context;
  both.asio_executor = pool.get_executor();
  CHECK_THROWS_AS(Runtime{both}, ArgumentError);
}

TEST_CASE("runs of equal extents one after the other need no more memory than one") {
  RuntimeOptions options;
  options.memory_limit = 3 << 19;
  Runtime runtime(options);
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown}));
    // The sums are few, and kept for the next run; the ones are many.
    const build::Var ones = build::call1("constant_of_shape", {build::call1("shape", {x})}, {{"value", Tensor::from<float>({1})}});
    build::output("sums", build::call1("reduce", {ones}, {{"kind", std::string("sum")}, {"axes", std::vector<std::int64_t>{1}}}));
  }
  const Executable executable = runtime.compile(std::move(program));
  for (int i = 0; i < 3; ++i) {
    const auto result = runtime.async_run(executable, {{"x", make_darray(DDim{256, 1024}, 0.0f)}}, asio::use_future).get();
    CHECK(result["sums"].tensor().to_vector<float>()[255] == 1024);
  }
}

TEST_CASE("a runtime with a memory limit ends the run that needs more, with op, iteration and size, and serves others") {
  RuntimeOptions options;
  options.memory_limit = 1 << 20;
  Runtime runtime(options);
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown}));
    build::Var step = build::constant(0);
    build::Var v = build::identity(x);
    auto loop = build::while_loop({step, v});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, build::constant(std::int64_t{64})));
      v.update(build::concat({v, v}, 0));
      step.update(step + 1);
    }
    build::output("v", v);
  }
  const Executable executable = runtime.compile(std::move(program));
  auto run = runtime.async_run(executable, {{"x", Tensor::from<float>(std::vector<float>(16, 1.0f), {16})}}, asio::use_future);
  std::string text;
  try {
    run.get();
  } catch (const OutOfMemoryError& error) {
    text = error.what();
  }
  INFO(text);
  CHECK(text.find("op concat") != std::string::npos);
  CHECK(text.find("iteration") != std::string::npos);
  CHECK(text.find("bytes") != std::string::npos);
  CHECK(text.find("1048576") != std::string::npos);
  CHECK(runtime.async_run(doubling(3), ones_of(2), asio::use_future).get()["v"].tensor().to_vector<float>() ==
        std::vector<float>(6, 15.0f));
}
