// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_program.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/this_task.h>
#include <streaming/live/allocation_count.h>

using namespace millrace;

namespace {

/// Sums what arrives, slot by slot, while there is more; `reach`: how many slots back each iteration looks.
Program sums(std::int64_t reach) {
  using namespace millrace::build;
  Program program;
  const Guard guard(program);
  const ArrayVar x = ArrayVar::of(input("x", VarType::array_of(DType::f32, DDim{2}, false)));
  const ArrayVar y = ArrayVar::of(input("y", VarType::array_of(DType::f32, DDim{2}, false)));
  Var step = constant(reach);
  Var sum = constant(make_darray(DDim{2}, 0.0f));
  auto loop = while_loop({step, sum});
  {
    auto frame = loop.frame();
    loop.break_if(logical_not(x.has(step)));
    const Var next = reach == 0 ? sum + x.read(step) : sum + x.read(step) * x.read(step - reach);
    y.write(step - reach, next);
    sum.update(next);
    step.update(step + 1);
  }
  output("total", sum);
  return program;
}

/// Running sums, whose windows hold so many slots.
struct Summing {
  explicit Summing(std::int64_t window) : live(runtime, sums(0), options_of(window)) {}
  static LiveProgramOptions options_of(std::int64_t window) {
    LiveProgramOptions options;
    options.window = options.output_window = window;
    return options;
  }
  Runtime runtime;
  LiveProgram live;
};

Tensor slot(float a, float b) { return Tensor::from<float>({a, b}); }

}  // namespace

TEST_CASE("a loop that is no recurrence goes on while rows arrive, and its array is read while it runs") {
  for (const std::int64_t window : {0, 3}) {
    INFO("window ", window);
    Summing summing(window);
    const LiveProgram& live = summing.live;
    Executor& on = summing.runtime.executor();
    float a = 0;
    for (int i = 1; i <= 200; ++i) {
      sync_wait(on, live.push("x", slot(static_cast<float>(i), 1)));
      a += static_cast<float>(i);
      const std::optional<LoDTensor> y = sync_wait(on, live.next("y"));
      REQUIRE(y);
      CHECK(y->tensor().to_vector<float>() == std::vector<float>{a, static_cast<float>(i)});
    }
    live.finish();
    CHECK_FALSE(sync_wait(on, live.next("y")));
    const RunResult result = sync_wait(on, live.result());
    CHECK(result["total"].tensor().to_vector<float>() == std::vector<float>{a, 200});
  }
}

TEST_CASE("what has arrived stays readable without a window, however far back an iteration looks") {
  Runtime runtime;
  const LiveProgram live(runtime, sums(2));
  Executor& on = runtime.executor();
  for (int i = 1; i <= 4; ++i) sync_wait(on, live.push("x", slot(static_cast<float>(i), 1)));
  live.finish();
  CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>() == std::vector<float>{3, 1});
  CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>() == std::vector<float>{11, 2});
  CHECK_FALSE(sync_wait(on, live.next("y")));
}

TEST_CASE("a live run is cancelled while it waits, and names what it does not have") {
  Runtime runtime;
  const LiveProgram live(runtime, sums(0));
  CHECK_THROWS_WITH_AS(sync_wait(runtime.executor(), live.push("z", slot(1, 1))), doctest::Contains("live inputs (x), found 'z'"),
                       ArgumentError);
  live.cancel();
  CHECK_THROWS_AS(sync_wait(runtime.executor(), live.result()), CancelledError);
  CHECK_THROWS_AS(sync_wait(runtime.executor(), live.next("y")), CancelledError);
}

TEST_CASE("a push that is cancelled while it waits for room leaves no gap: the slot of the next push follows") {
  Summing summing(1);
  const LiveProgram& live = summing.live;
  Executor& on = summing.runtime.executor();
  float pushed = 0, sum = 0;
  for (bool room = true; room;) {
    REQUIRE(pushed < 20);
    try {
      sync_wait(on, with_deadline(std::chrono::milliseconds(100), live.push("x", slot(pushed + 1, 1))));
      sum += ++pushed;
    } catch (const DeadlineError&) {
      room = false;
    }
  }
  Running<void> later = start_run(on, live.push("x", slot(1000, 1)), "push");
  for (float i = 1; i <= pushed; ++i) CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>().at(1) == i);
  CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>() == std::vector<float>{sum + 1000, pushed + 1});
  later.get();
  live.finish();
  CHECK_FALSE(sync_wait(on, live.next("y")));
}

TEST_CASE("a call of next that is cancelled, or never started, takes no slot") {
  for (const std::int64_t window : {0, 3}) {
    INFO("window ", window);
    Summing summing(window);
    const LiveProgram& live = summing.live;
    Executor& on = summing.runtime.executor();
    CHECK_THROWS_AS(sync_wait(on, with_deadline(std::chrono::milliseconds(5), live.next("y"))), DeadlineError);
    const task<std::optional<LoDTensor>> unused = live.next("y");
    sync_wait(on, live.push("x", slot(1, 1)));
    CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>() == std::vector<float>{1, 1});
    CHECK_THROWS_AS(sync_wait(on, with_deadline(std::chrono::milliseconds(5), live.next("y"))), DeadlineError);
    sync_wait(on, live.push("x", slot(2, 1)));
    live.finish();
    CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>() == std::vector<float>{3, 2});
    CHECK_FALSE(sync_wait(on, live.next("y")));
    CHECK_FALSE(sync_wait(on, live.next("y")));
  }
}

namespace {

/// `push` of `value`, or `next` where there is none, with allocations that fail, but for those of its run.
task<void> starved(const LiveProgram* live, std::optional<LoDTensor> value, std::uint64_t at, std::optional<LoDTensor>* made, bool* pushed,
                   std::uint64_t* failed) {
  testing::fail_allocations({0, at});
  try {
    if (value) {
      task<void> work = live->push("x", *value);
      co_await std::move(work);
      *pushed = true;
    } else {
      task<std::optional<LoDTensor>> work = live->next("y");
      *made = co_await std::move(work);
    }
  } catch (const std::bad_alloc&) {
  }
  *failed = testing::end_allocation_faults();
}

}  // namespace

TEST_CASE("a call of next that runs out of memory takes no slot, and one of push gives none") {
  for (const bool pushing : {false, true}) {
    std::uint64_t hit = 1;
    for (std::uint64_t at = 0; hit > 0; ++at) {
      INFO("pushing ", pushing, ", allocation ", at);
      Summing summing(0);
      const LiveProgram& live = summing.live;
      Executor& on = summing.runtime.executor();
      const LoDTensor one(slot(1, 1));
      if (!pushing) sync_wait(on, live.push("x", one));
      std::optional<LoDTensor> first;
      bool pushed = false;
      sync_wait(starved(&live, pushing ? std::optional<LoDTensor>(one) : std::nullopt, at, &first, &pushed, &hit));
      if (pushing && !pushed) sync_wait(on, live.push("x", one));
      sync_wait(on, live.push("x", slot(2, 1)));
      if (!first) first = sync_wait(on, live.next("y"));
      REQUIRE(first);
      CHECK(first->tensor().to_vector<float>() == std::vector<float>{1, 1});
      CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>() == std::vector<float>{3, 2});
    }
  }
}

namespace {

task<void> reads(TensorArray array, std::string* found) {
  try {
    co_await array.read(0);
  } catch (const CancelledError& error) {
    *found = error.what();
  } catch (const DeadlockError& error) {
    *found = error.what();
  }
}

/// Two tasks wait for a slot that nobody writes. From then on no allocation succeeds, and they are cancelled or found to wait for ever.
task<void> without_memory(bool cancelled, std::array<std::string, 2>* found, std::uint64_t* failed) {
  TaskInfo& me = co_await this_task::info();
  const TensorArray array;
  Scope scope(me);
  for (std::string& each : *found) {
    each.reserve(200);
    scope.spawn(reads(array, &each));
  }
  for (int i = 0; i < 4; ++i) co_await this_task::yield();
  testing::fail_allocations({0, {}});
  if (cancelled) scope.cancellation().cancel();
  co_await scope.join();
  *failed = testing::end_allocation_faults();
}

}  // namespace

TEST_CASE("tasks that are cancelled or wait for ever end where no memory is left for the text of their error") {
  for (const bool cancelled : {true, false}) {
    std::array<std::string, 2> found;
    std::uint64_t failed = 0;
    sync_wait(without_memory(cancelled, &found, &failed));
    CAPTURE(cancelled);
    if (failed == 0) {
      MESSAGE("skipped: allocations cannot be made to fail here");
      return;
    }
    for (const std::string& each : found) CHECK(each == (cancelled ? "cancelled" : "deadlock"));
  }
}

TEST_CASE("a push is refused where its slot is not of the declared type, and the run goes on") {
  Runtime runtime;
  const LiveProgram live(runtime, sums(0));
  Executor& on = runtime.executor();
  CHECK_THROWS_WITH_AS(sync_wait(on, live.push("x", LoDTensor(Tensor::from<double>({1, 2})))), doctest::Contains("expected f32"),
                       DTypeError);
  CHECK_THROWS_WITH_AS(sync_wait(on, live.push("x", LoDTensor(Tensor::from<float>({1, 2, 3})))), doctest::Contains("expected [2]"),
                       ShapeError);
  CHECK_THROWS_AS(sync_wait(on, live.push("x", LoDTensor(Tensor(DType::f32, DDim{2})))), UninitializedError);
  sync_wait(on, live.push("x", slot(1, 2)));
  CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>() == std::vector<float>{1, 2});
  LiveProgramOptions options;
  options.window = -1;
  CHECK_THROWS_WITH_AS(LiveProgram(runtime, sums(0), options), doctest::Contains("window: expected at least 0 slots, found -1"),
                       ArgumentError);
}

TEST_CASE("a push is refused where its slot has other levels than the program declares") {
  Runtime runtime;
  const LiveProgram live(runtime, sums(0));
  Executor& on = runtime.executor();
  CHECK_THROWS_WITH_AS(sync_wait(on, live.push("x", LoDTensor(slot(1, 2), LoD::from_lengths({{2}})))),
                       doctest::Contains("'x': expected a slot with 0 levels"), LoDError);
  sync_wait(on, live.push("x", slot(1, 2)));
  CHECK(sync_wait(on, live.next("y"))->tensor().to_vector<float>() == std::vector<float>{1, 2});
}

TEST_CASE("a live run that is destroyed is cancelled, whether or not it waits, and does not end as if its rows were over") {
  Runtime runtime;
  Executor& on = runtime.executor();
  for (int i = 0; i < 200; ++i) {
    INFO("run ", i);
    std::optional<Running<RunResult>> result;
    std::optional<Running<std::optional<LoDTensor>>> next;
    {
      const LiveProgram live(runtime, sums(0));
      result.emplace(start_run(on, live.result(), "result"));
      if (i % 2 == 0) sync_wait(on, live.push("x", slot(1, 1)));
      if (i % 2 == 0) sync_wait(on, live.next("y"));
      next.emplace(start_run(on, live.next("y"), "next"));
    }
    CHECK_THROWS_AS(result->get(), CancelledError);
    CHECK_THROWS_AS(next->get(), CancelledError);
  }
}

TEST_CASE("push, next and result throw the error of the run") {
  Runtime runtime;
  LiveProgramOptions options;
  options.run.deadline = std::chrono::milliseconds(5);
  const LiveProgram live(runtime, sums(0), options);
  Executor& on = runtime.executor();
  CHECK_THROWS_AS(sync_wait(on, live.result()), DeadlineError);
  CHECK_THROWS_AS(sync_wait(on, live.push("x", slot(1, 1))), DeadlineError);
  CHECK_THROWS_AS(sync_wait(on, live.next("y")), DeadlineError);
}

TEST_CASE("a push behind the finish of a run that failed throws the error of the run") {
  Runtime runtime;
  LiveProgramOptions options;
  options.output_window = 1;  // nobody reads
  options.run.deadline = std::chrono::milliseconds(50);
  const LiveProgram live(runtime, sums(0), options);
  Executor& on = runtime.executor();
  for (int i = 0; i < 4; ++i) sync_wait(on, live.push("x", slot(1, 1)));
  live.finish();
  CHECK_THROWS_AS(sync_wait(on, live.push("x", slot(1, 1))), ClosedError);
  CHECK_THROWS_AS(sync_wait(on, live.result()), DeadlineError);
  CHECK_THROWS_AS(sync_wait(on, live.push("x", slot(1, 1))), DeadlineError);
}

TEST_CASE("a live program whose runtime has gone runs on to its end") {
  Runtime other;
  auto runtime = std::make_unique<Runtime>();
  const LiveProgram live(*runtime, sums(0), Summing::options_of(3));
  sync_wait(runtime->executor(), live.push("x", slot(1, 2)));
  runtime.reset();
  sync_wait(other.executor(), live.push("x", slot(3, 4)));
  live.finish();
  CHECK(sync_wait(other.executor(), live.result())["total"].tensor().to_vector<float>() == std::vector<float>{4, 6});
}
