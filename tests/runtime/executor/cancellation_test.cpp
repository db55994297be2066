// SPDX-License-Identifier: Apache-2.0
// Programs that end early: cancelled at any point, too late for a deadline, or failed in an op. Nothing is left behind.
#include <millrace/runtime/executor/run_program.h>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <support/built.h>
#include <support/drive.h>
#include <support/program_runs.h>

using namespace millrace::build;
using millrace::CancelledError, millrace::DDim, millrace::DeadlineError, millrace::DType, millrace::Executable, millrace::Feeds,
    millrace::IndexError, millrace::Program, millrace::run, millrace::RunOptions, millrace::RunResult, millrace::ShapeError,
    millrace::Tensor, millrace::VarType;
using millrace::start_run, millrace::testing::bits, millrace::testing::borrow, millrace::testing::built_program, millrace::testing::on_cpu,
    millrace::testing::on_sim, millrace::testing::Schedule, millrace::testing::SimDevice;

namespace {

const VarType scalar(DType::f32, {});

/// Loops that read each other, nested loops, branches, a window and a growable array.
Program busy() {
  return built_program([] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2}));
    const TensorArray rows = TensorArray::unstack(x);
    const Var n = rows.size();
    const TensorArray a = TensorArray::typed(n, VarType(DType::f32, {2}), "a");
    // Read before it is written in the order of building: with its type.
    const ArrayVar window = ArrayVar::of(call1(
        "tensor_array", {},
        {{"window", std::int64_t{2}}, {"dtype", DType::f32}, {"shape", std::vector<std::int64_t>{2}}, {"name", std::string("window")}}));
    const TensorArray grown = TensorArray::growable("grown");
    Var step = constant(0);
    WhileLoop loop = while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, n));
      a.write(step, rows.read(step) + window.read(step) * 0.5);
      step.update(step + 1);
    }
    Var i = constant(0);
    Var state = rows.read(constant(0)) * 0.0;
    WhileLoop outer = while_loop({i, state});
    {
      const auto frame = outer.frame();
      outer.break_if(equal(i, n));
      Var j = constant(0);
      WhileLoop inner = while_loop({j, state});
      {
        const auto iteration = inner.frame();
        inner.break_if(equal(j, i));
        const std::vector<Var> next = if_else(
            equal(j, constant(1)), [&] { return std::vector<Var>{state + a.read(j)}; }, [&] { return std::vector<Var>{state * 0.5}; });
        state.update(next[0]);
        grown.append(state);
        j.update(j + 1);
      }
      window.append(state);
      i.update(i + 1);
    }
    output("a", a.stack());
    output("grown", grown.stack());
    output("state", state);
  });
}

Feeds rows(std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < 2 * count; ++i) values.push_back(static_cast<float>(i % 7));
  return {{"x", Tensor::from(values, {count, 2})}};
}

void check_nothing_left(Schedule& schedule, std::uint64_t seed) {
  schedule.device.drain(seed);
  CHECK(schedule.device.idle());
  CHECK(schedule.device.sim_memory().live_bytes() == 0);
  CHECK(millrace::live_frames() == 0);
}

/// An op of our own: gives X on, and throws ShapeError when an element of it is `at` or more.
std::shared_ptr<const millrace::OpRegistry> with_fuse() {
  auto registry = std::make_shared<millrace::OpRegistry>(*millrace::standard_ops());
  millrace::OpDef def;
  def.name = "fuse";
  def.inputs = {"X"};
  def.outputs = {"Out"};
  def.infer = [](millrace::InferContext& context) { context.result(context.type(0)); };
  def.host_inputs = {0};
  def.pure = false;
  def.prepare = [](const millrace::PrepareContext& context) -> millrace::OpKernel {
    return [at = context.attributes().get<std::int64_t>("at")](millrace::OpContext& run) {
      if (run.integers(0).at(0) >= at) throw ShapeError("the fuse blew");
      run.set(0, run.in(0));
    };
  };
  registry->add(std::move(def));
  return registry;
}

}  // namespace

TEST_CASE("the busy program gives the same bits under every schedule") {
  CHECK(millrace::testing::everywhere(busy(), rows(5), 100).iterations == 5 + 5 + 10);
}

TEST_CASE("a run that is cancelled after any number of steps says so and leaves no frame, no scope, no memory and no work") {
  std::size_t cancelled = 0;
  std::size_t done = 0;
  const Program program = busy();
  for (const std::uint64_t seed : millrace::testing::seeds(300)) {
    INFO("seed ", seed);
    millrace::testing::Random random(seed);
    Schedule schedule(seed, millrace::testing::policy_of(seed));
    {
      auto running = millrace::start_run(schedule.executor, run(Executable(program, borrow(schedule.device)), rows(5)), "cancelled");
      for (std::int64_t steps = random.between(0, 400); steps > 0 && schedule.executor.step();) --steps;
      running.cancel();
      schedule.executor.run();
      REQUIRE(running.ended());
      try {
        const RunResult result = running.get();
        CHECK(result.live_step_scopes() == 0);
        ++done;
      } catch (const CancelledError&) {
        ++cancelled;
      }
    }
    check_nothing_left(schedule, seed);
  }
  INFO(cancelled, " cancelled, ", done, " done");
  if (millrace::testing::seeds(300).size() == 300) {
    CHECK(cancelled > 50);
    CHECK(done > 50);
  }
}

TEST_CASE("a run that takes longer than its deadline is cancelled and says so") {
  const Program program = built_program([] {
    const Var fed = input("fed", VarType::array_of(DType::f32, DDim{}, false));
    output("x", ArrayVar::of(fed).read(constant(3)));
  });
  for (const bool in_time : {false, true}) {
    Schedule schedule(7);
    {
      const millrace::TensorArray fed = millrace::TensorArray::growable();
      RunOptions options;
      options.deadline = std::chrono::milliseconds(50);
      auto running =
          millrace::start_run(schedule.executor, run(Executable(program, borrow(schedule.device)), {{"fed", fed}}, options), "late");
      const millrace::ExternalHold hold(running.run());
      schedule.executor.advance(std::chrono::milliseconds(49));
      CHECK_FALSE(running.ended());
      if (in_time) {
        fed.write(3, Tensor::scalar(4.f));
        schedule.executor.run();
        CHECK(running.get()["x"].tensor().item() == 4);
      } else {
        schedule.executor.advance(std::chrono::milliseconds(1));
        CHECK_THROWS_AS(running.get(), DeadlineError);
      }
    }
    check_nothing_left(schedule, 7);
  }
}

TEST_CASE("a loop that never waits lets others run, and ends when it is cancelled or its deadline has passed") {
  const Executable endless(built_program([] {
    Var step = constant(0);
    WhileLoop loop = while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(less(step, constant(0)));
      step.update(step + 1);
    }
    output("step", step);
  }));
  const Executable short_one(built_program([] { output("y", input("x", scalar) + input("x2", scalar)); }));
  millrace::ThreadExecutor executor(1);
  RunOptions limited;
  limited.deadline = std::chrono::milliseconds(30);
  auto late = millrace::start_run(executor, run(endless, {}, limited), "late");
  auto cancelled = millrace::start_run(executor, run(endless, {}), "cancelled");
  auto beside = millrace::start_run(executor, run(short_one, {{"x", Tensor::scalar(1.f)}, {"x2", Tensor::scalar(2.f)}}), "beside");
  CHECK(beside.get()["y"].tensor().item() == 3);
  CHECK_THROWS_AS(late.get(), DeadlineError);
  CHECK_FALSE(cancelled.ended());
  cancelled.run().cancel();
  CHECK_THROWS_AS(cancelled.get(), CancelledError);
}

TEST_CASE("a run without loops ends behind the op at which it was cancelled or its deadline passed") {
  int calls = 0;
  std::function<void()> at_call;
  auto registry = std::make_shared<millrace::OpRegistry>(*millrace::standard_ops());
  millrace::OpDef def;
  def.name = "slow";
  def.inputs = {"X"};
  def.outputs = {"Out"};
  def.infer = [](millrace::InferContext& context) { context.result(context.type(0)); };
  def.prepare = [&](const millrace::PrepareContext&) -> millrace::OpKernel {
    return [&](millrace::OpContext& run) {
      ++calls;
      if (at_call) at_call();
      run.set(0, run.in(0));
    };
  };
  registry->add(std::move(def));
  Program program(registry);
  {
    const Guard guard(program);
    Var x = input("x", scalar);
    for (int i = 0; i < 20; ++i) x = call1("slow", {x});
    output("y", x);
  }
  const Executable executable(std::move(program));
  const Feeds feeds{{"x", Tensor::scalar(1.f)}};
  millrace::ThreadExecutor threads(1);
  for (millrace::Executor* const executor : {static_cast<millrace::Executor*>(nullptr), static_cast<millrace::Executor*>(&threads)}) {
    calls = 0;
    at_call = [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
    RunOptions limited;
    limited.deadline = std::chrono::milliseconds(5);
    if (executor == nullptr) {
      CHECK_THROWS_AS(millrace::sync_wait(run(executable, feeds, limited)), DeadlineError);
    } else {
      CHECK_THROWS_AS(millrace::sync_wait(*executor, run(executable, feeds, limited)), DeadlineError);
    }
    CHECK(calls < 10);
    calls = 0;
    if (executor == nullptr) {
      CHECK_THROWS_AS(millrace::sync_wait(with_deadline(limited.deadline.value(), run(executable, feeds))), DeadlineError);
    } else {
      CHECK_THROWS_AS(millrace::sync_wait(*executor, with_deadline(limited.deadline.value(), run(executable, feeds))), DeadlineError);
    }
    CHECK(calls < 10);
  }
  calls = 0;
  std::atomic<bool> begun = false, goes_on = false;
  at_call = [&] {
    begun = true;
    while (!goes_on) std::this_thread::yield();
  };
  auto cancelled = millrace::start_run(threads, run(executable, feeds), "cancelled");
  while (!begun) std::this_thread::yield();
  cancelled.run().cancel();
  goes_on = true;
  CHECK_THROWS_AS(cancelled.get(), CancelledError);
  CHECK(calls == 1);
}

TEST_CASE("an op that throws in an iteration of a nested loop says which op, block and iteration") {
  Program program(with_fuse());
  {
    const Guard guard(program);
    Var i = constant(0);
    WhileLoop outer = while_loop({i});
    {
      const auto frame = outer.frame();
      outer.break_if(equal(i, constant(4)));
      Var j = constant(0);
      WhileLoop inner = while_loop({j});
      {
        const auto iteration = inner.frame();
        inner.break_if(equal(j, constant(3)));
        call1("fuse", {i * 10 + j}, {{"at", std::int64_t{21}}});
        j.update(j + 1);
      }
      i.update(i + 1);
    }
    output("i", i);
  }
  for (const std::uint64_t seed : millrace::testing::seeds(200)) {
    INFO("seed ", seed);
    Schedule schedule(seed, millrace::testing::policy_of(seed));
    std::string message;
    try {
      on_sim(schedule, program);
    } catch (const ShapeError& error) {
      message = error.what();
    }
    // Iterations of the outer loop run at the same time: the first error may be that of iteration 2 or 3.
    INFO(message);
    const bool second = message == "the fuse blew (op fuse of block 2, iteration 1, iteration 2 of block 1)";
    const bool third =
        message.starts_with("the fuse blew (op fuse of block 2, iteration ") && message.ends_with(", iteration 3 of block 1)");
    CHECK((second || third));
    check_nothing_left(schedule, seed);
  }
}

TEST_CASE("an op that throws in one of several loops ends the others") {
  Program program(with_fuse());
  {
    const Guard guard(program);
    const TensorArray meet = TensorArray::typed(constant(20), VarType(DType::i64, {}), "meet");
    for (int which = 0; which < 2; ++which) {
      Var t = constant(0);
      WhileLoop loop = while_loop({t});
      const auto frame = loop.frame();
      loop.break_if(equal(t, constant(20)));
      if (which == 0)
        static_cast<void>(meet.read(t));
      else
        meet.write(t, call1("fuse", {t}, {{"at", std::int64_t{9}}}));
      t.update(t + 1);
    }
  }
  for (const std::uint64_t seed : millrace::testing::seeds(100)) {
    INFO("seed ", seed);
    Schedule schedule(seed, millrace::testing::policy_of(seed));
    std::string message;
    try {
      on_sim(schedule, program);
    } catch (const millrace::Error& error) {
      message = error.what();
    }
    CHECK(message == "the fuse blew (op fuse of block 2, iteration 9)");
    check_nothing_left(schedule, seed);
  }
}

TEST_CASE("feeds that do not fit are refused before anything runs") {
  const Program program = busy();
  CHECK_THROWS_WITH_AS(on_cpu(program, {}), doctest::Contains("input 'x': expected f32[?, 2], found nothing"), millrace::ArgumentError);
  CHECK_THROWS_WITH_AS(on_cpu(program, {{"y", Tensor::scalar(1.f)}}), doctest::Contains("has no input 'y': expected x"),
                       millrace::ArgumentError);
  CHECK_THROWS_WITH_AS(on_cpu(program, {{"x", Tensor::from<float>({1, 2, 3}).reshape({1, 3})}}),
                       doctest::Contains("expected f32[?, 2], found f32[1, 3]"), ShapeError);
  CHECK_THROWS_WITH_AS(on_cpu(program, {{"x", Tensor(DType::f32, {1, 2})}}),
                       doctest::Contains("nothing was ever written to its storage (run: input 'x'"), millrace::UninitializedError);
  Tensor moved = Tensor::scalar(1.0F);
  const Tensor taken = std::move(moved);
  CHECK_THROWS_AS(on_cpu(program, {{"x", moved}}), millrace::Error);  // NOLINT(bugprone-use-after-move): that is the point
  CHECK(millrace::live_frames() == 0);
}

TEST_CASE("a fed array has slots of the type that the program declares") {
  const Program program = built_program([] {
    const ArrayVar steps = ArrayVar::of(input("steps", VarType::array_of(DType::f32, DDim{2}, false)));
    output("first", steps.read(constant(0)));
  });
  const auto write = [](millrace::TensorArray array, std::vector<Tensor> slots) -> millrace::task<void> {
    for (std::size_t i = 0; i < slots.size(); ++i)
      co_await array.write(static_cast<std::int64_t>(i), millrace::LoDTensor(slots[i]), millrace::TensorArray::share);
  };
  const auto fed = [&](std::vector<Tensor> slots) {
    const millrace::TensorArray array = millrace::TensorArray::growable();
    millrace::testing::run_fifo(write(array, std::move(slots)));
    return Feeds{{"steps", array}};
  };
  CHECK(on_cpu(program, fed({Tensor::from<float>({1, 2})}))["first"].tensor().to_vector<float>() == std::vector<float>{1, 2});
  CHECK_THROWS_WITH_AS(on_cpu(program, fed({Tensor::from<double>({1, 2})})), doctest::Contains("run: input 'steps'"), millrace::DTypeError);
  CHECK_THROWS_WITH_AS(on_cpu(program, fed({Tensor::from<float>({1})})), doctest::Contains("run: input 'steps'"), ShapeError);
  CHECK_THROWS_WITH_AS(on_cpu(program, fed({Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2})})), doctest::Contains("run: input 'steps'"),
                       ShapeError);
}

TEST_CASE("a result keeps its values when the caller fills its feed again") {
  const Program program = built_program([] {
    const Var x = input("x", VarType(DType::f32, {2}));
    output("same", x);
    output("turned", reshape(x, {2, 1}));
  });
  Tensor x = Tensor::from<float>({1, 2});
  const RunResult result = on_cpu(program, {{"x", x}});
  x.mutable_data<float>()[0] = 9;
  CHECK(result["same"].tensor().to_vector<float>() == std::vector<float>{1, 2});
  CHECK(result["turned"].tensor().to_vector<float>() == std::vector<float>{1, 2});
}

TEST_CASE("on devices that fail, complete late or run out of memory a run ends with its bits or with one error that names the place") {
  const Program program = busy();
  const std::string wanted = bits(on_cpu(program, rows(5)));
  Schedule clean(1);
  CHECK(bits(on_sim(clean, program, rows(5))) == wanted);
  const std::size_t failed = millrace::testing::through_faults(program, rows(5), wanted, 90, clean.device);
  CHECK(5 * failed > millrace::testing::seeds(100).size());
  CHECK(failed < 85);
}

TEST_CASE("a device that fails takes its own run along, naming the op, and a run on another device of the same executor goes on") {
  std::size_t named = 0;
  const Program program = busy();
  const std::string wanted = bits(on_cpu(program, rows(5)));
  for (const std::uint64_t seed : millrace::testing::seeds(30)) {
    INFO("seed ", seed);
    millrace::testing::Random random(seed);
    Schedule schedule(seed);
    SimDevice faulty({.index = 1, .fail_work = static_cast<std::size_t>(random.between(1, 40)), .late = seed % 2 == 0});
    schedule.executor.add_source(faulty);
    {
      auto broken = start_run(schedule.executor, run(Executable(program, borrow(faulty)), rows(5)), "broken");
      auto whole = start_run(schedule.executor, run(Executable(program, borrow(schedule.device)), rows(5)), "whole");
      schedule.executor.run();
      REQUIRE(broken.ended());
      std::string said;
      try {
        static_cast<void>(broken.get());
      } catch (const millrace::DeviceError& error) {
        said = error.what();
      }
      CHECK(said.find("on sim:1, stream ") != std::string::npos);
      named += said.find("(op ") != std::string::npos && said.find(" of block ") != std::string::npos;
      // Where it began, and not also each op that it reached.
      CHECK_MESSAGE(said.find("(op ") == said.rfind("(op "), said);
      CHECK(bits(whole.get()) == wanted);
    }
    CHECK(faulty.idle());
    CHECK(faulty.sim_memory().live_bytes() == 0);
    check_nothing_left(schedule, seed);
    schedule.executor.remove_source(faulty);
  }
  CHECK(3 * named > 2 * millrace::testing::seeds(30).size());  // others hit what a run was fed
}
