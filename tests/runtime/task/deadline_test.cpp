// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/deadline.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <doctest/doctest.h>

#include <thread>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/asio_executor.h>
#include <millrace/runtime/task/gate.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

task<int> after(Duration duration) {
  co_await this_task::sleep_for(duration);
  co_return 3;
}

task<int> within(Duration deadline, Duration duration) {
  task<int> work = after(duration);
  const int value = co_await with_deadline(deadline, std::move(work));
  co_return value;
}

task<int> goes_on_after_a_deadline() {
  int missed = 0;
  try {
    co_await within(1ms, 1h);
  } catch (const DeadlineError&) {
    ++missed;
  }
  const int value = co_await after(1ms);
  co_return missed * 10 + value;
}

task<int> nested() {
  task<int> inner = within(1h, 1h);
  const int value = co_await with_deadline(2ms, std::move(inner));
  co_return value;
}

task<> computes(int* passes) {
  for (;;) {
    ++*passes;
    std::this_thread::sleep_for(1ms);
    co_await this_task::checkpoint();
  }
}

/// Two deadlines around work in a child; the outer one is the nearer.
task<> computes_in_a_child(int* passes) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(computes(passes));
  task<> join = [](Scope* of) -> task<> { co_await of->join(); }(&scope);
  co_await with_deadline(1h, std::move(join));
}

task<> stuck(Gate* gate) { co_await gate->wait(); }

task<> stuck_with_deadline(Gate* gate) {
  task<> work = stuck(gate);
  co_await with_deadline(1h, std::move(work));
}

}  // namespace

TEST_CASE("work that ends in time gives its result and leaves no timer") {
  SeededExecutor executor(1);
  executor.auto_advance(true);
  CHECK(sync_wait(executor, within(1h, 1ms)) == 3);
  executor.run();
  CHECK(executor.now() == 1ms);
}

TEST_CASE("work that does not end in time is cancelled and the error says how long it had") {
  SeededExecutor executor(1);
  executor.auto_advance(true);
  CHECK_THROWS_WITH_AS(sync_wait(executor, within(1ms, 1h), "slow"), "task 'slow' did not end within 1 ms", DeadlineError);
  CHECK(executor.now() == 1ms);
  ThreadExecutor threads(2);
  for (int i = 0; i < 20; ++i) CHECK_THROWS_AS(sync_wait(threads, within(100us, 1h)), DeadlineError);
}

TEST_CASE("a task goes on after a deadline, uncancelled") {
  SeededExecutor executor(1);
  executor.auto_advance(true);
  CHECK(sync_wait(executor, goes_on_after_a_deadline()) == 13);
}

TEST_CASE("the outer deadline ends the inner work") {
  SeededExecutor executor(1);
  executor.auto_advance(true);
  CHECK_THROWS_AS(sync_wait(executor, nested()), DeadlineError);
  CHECK(executor.now() == 2ms);
}

TEST_CASE("work that computes and lets no timer fire ends at its next checkpoint behind the deadline") {
  int passes = 0;
  CHECK_THROWS_AS(sync_wait(with_deadline(5ms, computes(&passes))), DeadlineError);
  CHECK(passes < 1000);
  passes = 0;
  CHECK_THROWS_AS(sync_wait(with_deadline(5ms, computes_in_a_child(&passes))), DeadlineError);
  CHECK(passes < 1000);
}

TEST_CASE("a deadlock is found at once although a deadline is pending") {
  SeededExecutor executor(1);
  Gate gate("what nobody opens");
  CHECK_THROWS_AS(sync_wait(executor, stuck_with_deadline(&gate)), DeadlockError);
  CHECK(executor.now() == TimePoint(0));
}

TEST_CASE("a deadline and an end at the same moment make one of the two, never both") {
  ThreadExecutor threads(2);
  for (int i = 0; i < 200; ++i) {
    try {
      const int value = sync_wait(threads, within(50us, 50us));
      CHECK(value == 3);
    } catch (const DeadlineError&) {
    }
    CHECK(live_frames() == 0);
  }
}

TEST_CASE("a deadline or a sleep whose end is beyond the last time of an executor waits, instead of ending at once") {
  SeededExecutor seeded(1);
  seeded.auto_advance(true);
  CHECK(sync_wait(seeded, after(1h)) == 3);  // so that `now` is no longer 0
  CHECK(sync_wait(seeded, within(Duration::max(), 1ms)) == 3);
  CHECK_THROWS_AS(sync_wait(seeded, within(Duration::min(), 1ms)), DeadlineError);
  CHECK(seeded.after(Duration::max()) == Executor::last_time);
  asio::io_context context(1);
  const auto work = asio::make_work_guard(context);
  std::thread thread([&context] { context.run(); });
  {
    AsioExecutor on_context(context);
    ThreadExecutor own(1);
    for (Executor* executor : {static_cast<Executor*>(&on_context), static_cast<Executor*>(&own)}) {
      CHECK(sync_wait(*executor, within(Duration::max(), 1ms)) == 3);
      CHECK_THROWS_AS(sync_wait(*executor, within(1ms, Duration::max())), DeadlineError);
    }
  }
  context.stop();
  thread.join();
}
