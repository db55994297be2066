// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/task.h>

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;

namespace {

task<int> number(int value) { co_return value; }

task<long> sum_of_ready(int count) {
  long sum = 0;
  for (int i = 0; i < count; ++i) {
    const int value = co_await number(1);
    sum += value;
  }
  co_return sum;
}

task<long> nested(int depth) {
  if (depth == 0) co_return 0;
  const long below = co_await nested(depth - 1);
  co_return below + 1;
}

task<> mark(bool* ran) {
  *ran = true;
  co_return;
}

task<std::unique_ptr<int>> move_only() { co_return std::make_unique<int>(7); }

task<int> failing(std::string text) {
  co_await this_task::yield();
  throw std::runtime_error(text);
}

task<std::string> catching() {
  try {
    co_await failing("no such row");
  } catch (const std::runtime_error& error) {
    co_return std::string("caught: ") + error.what();
  }
  co_return "not thrown";
}

task<> keep(std::shared_ptr<int> held) {
  co_await this_task::yield();
  static_cast<void>(held);
}

task<std::string> my_name() {
  TaskInfo& me = co_await this_task::info();
  co_return me.name();
}

task<std::string> name_from_below() {
  std::string name = co_await my_name();
  co_return name;
}

task<bool> runs_on(const Executor* executor) {
  co_await this_task::yield();
  TaskInfo& me = co_await this_task::info();
  co_return &me.executor() == executor && executor->running_in_this_thread();
}

}  // namespace

TEST_CASE("a million ready awaits in a loop do not overflow the stack") {
  SeededExecutor executor(1);
  CHECK(sync_wait(executor, sum_of_ready(1'000'000)) == 1'000'000);
  ThreadExecutor threads(1);
  CHECK(sync_wait(threads, sum_of_ready(1'000'000)) == 1'000'000);
}

TEST_CASE("tasks that await tasks go ten thousand deep") {
  SeededExecutor executor(1);
  CHECK(sync_wait(executor, nested(10'000)) == 10'000);
}

TEST_CASE("a ready await goes through the queue every 64th time so that others run in between") {
  SeededExecutor executor(1, SeededExecutor::Policy::fifo);
  auto running = start_run(executor, sum_of_ready(320));
  const std::size_t decisions = executor.run();
  CHECK(decisions == 1 + 2 * 320 / 64);
  CHECK(running.get() == 320);
}

TEST_CASE("a task does nothing before it is awaited and frees its arguments when it never is") {
  bool ran = false;
  auto held = std::make_shared<int>(1);
  {
    task<> never = mark(&ran);
    task<> holder = keep(held);
    CHECK(static_cast<bool>(never));
    CHECK(held.use_count() == 2);
  }
  CHECK_FALSE(ran);
  CHECK(held.use_count() == 1);
  CHECK(live_frames() == 0);
}

TEST_CASE("a moved-from task is empty and the frame has one owner") {
  task<int> first = number(4);
  task<int> second = std::move(first);
  CHECK_FALSE(static_cast<bool>(first));
  first = number(5);
  second = std::move(first);
  SeededExecutor executor(1);
  CHECK(sync_wait(executor, std::move(second)) == 5);
}

TEST_CASE("a result may be movable only") {
  SeededExecutor executor(1);
  CHECK(*sync_wait(executor, move_only()) == 7);
}

TEST_CASE("an error goes to who awaits with its type and text") {
  SeededExecutor executor(1);
  CHECK(sync_wait(executor, catching()) == "caught: no such row");
  CHECK_THROWS_WITH_AS(sync_wait(executor, failing("lost")), "lost", std::runtime_error);
}

TEST_CASE("an awaited task has the name and the executor of the task that awaits it") {
  SeededExecutor executor(1);
  CHECK(sync_wait(executor, name_from_below(), "canonical listing") == "canonical listing");
  ThreadExecutor threads(2);
  CHECK(sync_wait(threads, runs_on(&threads)));
}

namespace {

task<> await_moved_from() {
  task<int> first = number(1);
  task<int> second = std::move(first);
  co_await std::move(second);
  co_await std::move(first);
}

task<> await_twice() {
  task<int> work = number(1);
  co_await std::move(work);
  co_await std::move(work);
}

task<> spawn_nothing(int* refused) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  task<> empty;
  try {
    scope.spawn(std::move(empty));
  } catch (const EmptyTaskError&) {
    ++*refused;
  }
  try {
    task<int> nothing;
    Spawned<int> started = scope.start(std::move(nothing));
  } catch (const EmptyTaskError&) {
    ++*refused;
  }
  Spawned<int> handle = scope.start(number(3));
  Spawned<int> moved = std::move(handle);
  try {
    co_await handle;
  } catch (const EmptyTaskError&) {
    ++*refused;
  }
  const int value = co_await moved;
  if (value == 3) ++*refused;
  co_await scope.join();
}

}  // namespace

TEST_CASE("awaiting, spawning or starting a task that holds no work any more is a typed error") {
  SeededExecutor executor(1);
  CHECK_THROWS_WITH_AS(sync_wait(executor, await_moved_from()), doctest::Contains("default-made or moved from"), EmptyTaskError);
  CHECK_THROWS_WITH_AS(sync_wait(executor, await_twice()), doctest::Contains("awaited, spawned or started before"), EmptyTaskError);
  int refused = 0;
  sync_wait(executor, spawn_nothing(&refused));
  CHECK(refused == 4);
  CHECK_THROWS_AS(sync_wait(executor, task<int>()), EmptyTaskError);
  Running<int> running = start_run(executor, number(5));
  Running<int> moved = std::move(running);
  CHECK_THROWS_AS(running.get(), EmptyTaskError);
  CHECK(moved.get() == 5);
}
