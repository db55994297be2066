// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/thread_executor.h>

#include <doctest/doctest.h>

#include <sys/resource.h>

#include <atomic>
#include <thread>

#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/tensor/awaited_soon.h>

#include "support/no_threads.h"

using namespace millrace;
using namespace std::chrono_literals;

namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

task<> count_up(std::atomic<int>* count) {
  for (int i = 0; i < 10; ++i) {
    co_await this_task::yield();
    count->fetch_add(1);
  }
}

task<> many(std::atomic<int>* count) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  for (int i = 0; i < 500; ++i) scope.spawn(count_up(count));
  co_await scope.join();
}

task<Duration> nap(Duration duration) {
  TaskInfo& me = co_await this_task::info();
  const TimePoint before = me.executor().now();
  co_await this_task::sleep_for(duration);
  co_return me.executor().now() - before;
}

/// Processor time that passes while a task of the executor naps and nothing else is there.
double seconds_of_idling(ThreadExecutor& executor, Duration how_long) {
  auto running = start_run(executor, nap(10h));
  std::this_thread::sleep_for(20ms);
  const double before = cpu_seconds();
  std::this_thread::sleep_for(how_long);
  const double spent = cpu_seconds() - before;
  running.cancel();
  CHECK_THROWS_AS(running.get(), CancelledError);
  return spent;
}

task<> pass_back_and_forth(Gate* to, Gate* back) {
  co_await to->wait();
  back->open();
}

task<> two_threads_meet(ThreadExecutor* other) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  Gate to("to");
  Gate back("back");
  scope.spawn_on(*other, pass_back_and_forth(&to, &back));
  to.open();
  co_await back.wait();
  CHECK(me.executor().running_in_this_thread());
  co_await scope.join();
}

}  // namespace

TEST_CASE("an executor without work uses no CPU, not even while a task waits for a timer or the host") {
  ThreadExecutor executor(3);
  CHECK(seconds_of_idling(executor, 1s) < 0.02);
}

TEST_CASE("while a device is about to complete something, work and timers come as ever, and a thread spins for a moment") {
  const AwaitedSoon soon;
  for (const std::size_t threads : {1, 3}) {
    ThreadExecutor executor(threads);
    std::atomic<int> count = 0;
    sync_wait(executor, many(&count));
    CHECK(count == 5000);
    CHECK(sync_wait(executor, nap(2ms)) >= 2ms);
    CHECK(seconds_of_idling(executor, 300ms) < 0.02);
  }
}

TEST_CASE("many tasks on two threads all run") {
  ThreadExecutor executor(2);
  std::atomic<int> count = 0;
  sync_wait(executor, many(&count));
  CHECK(count == 5000);
}

TEST_CASE("a timer fires no earlier than asked") {
  ThreadExecutor executor(1);
  CHECK(sync_wait(executor, nap(5ms)) >= 5ms);
}

TEST_CASE("a task goes on on its own executor whoever wakes it") {
  ThreadExecutor one(1);
  ThreadExecutor other(1);
  for (int i = 0; i < 200; ++i) sync_wait(one, two_threads_meet(&other));
}

TEST_CASE("an executor needs a thread, and takes no more than a machine may have") {
  CHECK_THROWS_WITH_AS(ThreadExecutor(0), "ThreadExecutor: expected 1 to 65536 threads, found 0", ArgumentError);
  CHECK_THROWS_WITH_AS(ThreadExecutor(~std::size_t{0}), "ThreadExecutor: expected 1 to 65536 threads, found 18446744073709551615",
                       ArgumentError);
}

TEST_CASE("an executor whose threads cannot start says which") {
  const testing::NoThreads none;
  CHECK_THROWS_WITH_AS(ThreadExecutor(2),
                       doctest::Contains("ThreadExecutor: thread 1 of 2: expected a thread, found that the system starts none"),
                       ThreadError);
}
