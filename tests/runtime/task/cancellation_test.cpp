// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/cancellation.h>

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <thread>

#include "support/random.h"
#include "support/test_slot.h"

#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/task/when_all.h>

using namespace millrace;
using namespace std::chrono_literals;
using testing::TestSlot;

namespace {

// A bit of everything: gates, slots, points, timers, nested scopes, results.
struct World {
  Gate gate{"a gate"};
  TestSlot slot{"a slot"};
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
};

task<int> leaf(World* world, int kind) {
  co_await this_task::checkpoint();
  if (kind % 5 == 0) co_await world->gate.wait();
  if (kind % 5 == 1) co_await world->slot.read();
  if (kind % 5 == 2) co_await ready(Point(world->timeline, 1));
  if (kind % 5 == 3) co_await this_task::sleep_for(1ms);
  co_await this_task::yield();
  co_return kind;
}

task<int> branch(World* world, int kind) {
  std::vector<task<int>> works;
  for (int i = 0; i < 3; ++i) works.push_back(leaf(world, kind + i));
  std::vector<int> values = co_await when_all(std::move(works));
  task<int> last = leaf(world, kind + 1);
  const int value = co_await with_deadline(1h, std::move(last));
  co_return values.front() + value;
}

task<> release(World* world) {
  for (int i = 0; i < 4; ++i) co_await this_task::yield();
  world->gate.open();
  world->slot.write(1);
  world->timeline->advance(1);
}

task<> everything(World* world) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  std::vector<Spawned<int>> handles;
  for (int i = 0; i < 5; ++i) handles.push_back(scope.start(branch(world, i)));
  scope.spawn(release(world));
  for (Spawned<int>& handle : handles) co_await handle;
  co_await scope.join();
}

task<> waits_for(Gate* gate, std::optional<CancellationSource>* source) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  *source = scope.cancellation();
  Spawned<void> child = scope.start([](Gate* g) -> task<> { co_await g->wait(); }(gate));
  co_await scope.join();
  CHECK(child.ended());
}

task<> never_checks(int* iterations) {
  for (; *iterations < 10; ++*iterations) co_await this_task::yield();
  co_await this_task::checkpoint();
}

}  // namespace

TEST_CASE("cancelling at any point leaves no frame, no timer and no waiter behind") {
  for (const std::uint64_t seed : testing::seeds(300)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    SeededExecutor executor(seed);
    executor.auto_advance(true);
    World world;
    auto running = start_run(executor, everything(&world));
    const auto steps = random.between(0, 120);
    for (int i = 0; i < steps; ++i) {
      if (!executor.step()) executor.advance(1ms);
    }
    running.cancel();
    try {
      running.get();
    } catch (const CancelledError&) {
    }
    CHECK(live_frames() == 0);
    executor.auto_advance(false);
    CHECK(executor.run() == 0);
  }
}

TEST_CASE("cancelling from another thread at any moment leaves no frame behind") {
  ThreadExecutor executor(2);
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    World world;
    auto running = start_run(executor, everything(&world));
    std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 300)));
    running.cancel();
    try {
      running.get();
    } catch (const CancelledError&) {
    }
    CHECK(live_frames() == 0);
  }
}

TEST_CASE("a source cancels one scope from outside and does nothing once that has ended") {
  SeededExecutor executor(1);
  Gate gate;
  std::optional<CancellationSource> source;
  auto running = start_run(executor, waits_for(&gate, &source));
  while (!source.has_value()) executor.step();
  CHECK_FALSE(source->token().cancelled());
  source->cancel();
  CHECK(source->token().cancelled());
  running.get();
  source->cancel();
}

TEST_CASE("cancellation is cooperative: a task goes on to its next wait or checkpoint") {
  SeededExecutor executor(1);
  int iterations = 0;
  auto running = start_run(executor, never_checks(&iterations));
  running.cancel();
  CHECK_THROWS_WITH_AS(running.get(), "task 'run' was cancelled", CancelledError);
  CHECK(iterations == 10);
}

TEST_CASE("dropping the handle of a run cancels it") {
  SeededExecutor executor(1);
  Gate gate;
  std::optional<CancellationSource> source;
  {
    auto running = start_run(executor, waits_for(&gate, &source));
  }
  executor.run();
  CHECK(live_frames() == 0);
}
