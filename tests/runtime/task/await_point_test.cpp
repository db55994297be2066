// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/await_point.h>

#include <doctest/doctest.h>

#include <memory>
#include <thread>

#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;

namespace {

task<int> await(Point point) {
  co_await ready(point);
  TaskInfo& me = co_await this_task::info();
  CHECK(me.executor().running_in_this_thread());
  co_return 1;
}

}  // namespace

TEST_CASE("a reached point is no wait") {
  SeededExecutor executor(1);
  CHECK(sync_wait(executor, await(Point())) == 1);
  CHECK(executor.decisions() == 1);
}

TEST_CASE("a task waits for a point and its run is not at rest meanwhile") {
  SeededExecutor executor(1);
  auto timeline = std::make_shared<Timeline>();
  auto running = start_run(executor, await(Point(timeline, 2)));
  executor.run();
  timeline->advance(1);
  executor.run();
  CHECK_FALSE(running.ended());
  CHECK(running.run().activity() == 1);
  timeline->advance(2);
  executor.run();
  CHECK(running.get() == 1);
}

TEST_CASE("the error of a timeline is thrown in the task that waits, early or late") {
  SeededExecutor executor(1);
  auto timeline = std::make_shared<Timeline>();
  auto early = start_run(executor, await(Point(timeline, 1)));
  executor.run();
  timeline->fail(std::make_exception_ptr(IoError("the device is gone")));
  auto late = start_run(executor, await(Point(timeline, 1)));
  CHECK_THROWS_WITH_AS(early.get(), "the device is gone", IoError);
  CHECK_THROWS_WITH_AS(late.get(), "the device is gone", IoError);
}

TEST_CASE("points advanced by another thread resume tasks on their executor") {
  ThreadExecutor executor(2);
  for (int i = 0; i < 300; ++i) {
    auto timeline = std::make_shared<Timeline>();
    auto running = start_run(executor, await(Point(timeline, 1)));
    timeline->advance(1);
    CHECK(running.get() == 1);
  }
}

TEST_CASE("the end of a run is a point that tasks of other runs await") {
  SeededExecutor executor(5);
  auto timeline = std::make_shared<Timeline>();
  auto first = start_run(executor, await(Point(timeline, 1)));
  auto second = start_run(executor, await(first.point()));
  executor.run();
  CHECK_FALSE(second.ended());
  timeline->advance(1);
  executor.run();
  CHECK(second.get() == 1);
  CHECK(first.get() == 1);
}
