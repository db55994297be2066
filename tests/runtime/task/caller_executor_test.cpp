// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/caller_executor.h>

#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/run.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

task<> note(std::set<std::thread::id>* seen) {
  seen->insert(std::this_thread::get_id());
  co_await this_task::yield();
  seen->insert(std::this_thread::get_id());
}

task<int> many(std::set<std::thread::id>* seen) {
  int done = 0;
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  for (int i = 0; i < 20; ++i) scope.spawn(note(seen));
  co_await scope.join();
  for (int i = 0; i < 3; ++i, ++done) co_await this_task::sleep_for(1ms);
  co_return done;
}

/// An array that another thread writes once a task waits for it.
struct FromOutside {
  TensorArray array{3};
  std::optional<ExternalHold> hold;
  std::atomic<bool> waits = false;
};

task<float> last_of(FromOutside* from) {
  TaskInfo& me = co_await this_task::info();
  from->hold.emplace(me.run());
  from->waits = true;
  LoDTensor value = co_await from->array.read(2);
  co_return value.tensor().data<float>()[0];
}

task<> refuses() {
  std::set<std::thread::id> seen;
  CHECK_THROWS_AS(sync_wait(many(&seen)), BlockingError);
  co_return;
}

task<> never() { co_await TensorArray(1).read(0); }

}  // namespace

TEST_CASE("tasks and timers of a run without an executor are on the thread that waits for it") {
  std::set<std::thread::id> seen;
  CHECK(sync_wait(many(&seen)) == 3);
  CHECK(seen == std::set{std::this_thread::get_id()});
  CHECK(live_frames() == 0);
}

TEST_CASE("a thread that waits for a value sleeps until another thread writes it") {
  for (int round = 0; round < 200; ++round) {
    FromOutside from;
    std::thread writer([&] {
      while (!from.waits) std::this_thread::yield();
      if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round * 5));
      from.array.write(2, Tensor::from<float>({7}, {1}));
      from.hold.reset();
    });
    CHECK(sync_wait(last_of(&from)) == 7);
    writer.join();
  }
  CHECK(live_frames() == 0);
}

TEST_CASE("a deadline ends a wait, and a wait for what nobody can write is an error") {
  FromOutside from;
  CHECK_THROWS_AS(sync_wait(with_deadline(20ms, last_of(&from))), DeadlineError);
  from.hold.reset();
  CHECK_THROWS_AS(sync_wait(never()), DeadlockError);
  CHECK(live_frames() == 0);
}

TEST_CASE("runs on several threads do not meet, and none begins on a thread that runs tasks") {
  std::vector<std::thread> threads;
  std::atomic<int> done = 0;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&done] {
      for (int round = 0; round < 50; ++round) {
        std::set<std::thread::id> seen;
        done += sync_wait(many(&seen)) == 3 && seen.size() == 1 ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(done == 400);
  ThreadExecutor executor(1);
  sync_wait(executor, refuses());
}

TEST_CASE("a caller that has more to do drives the executor for a while") {
  CallerExecutor executor;
  CHECK(!executor.drive_for(1ms));
  std::set<std::thread::id> seen;
  Running<int> running = start_run(executor, many(&seen));
  std::size_t looks = 0;
  while (!running.ended()) looks += executor.drive_for(100us) ? 1 : 0;
  CHECK(looks > 3);
  CHECK(running.get() == 3);
}
