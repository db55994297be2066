// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/scope.h>

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/random.h"

#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;

namespace {

task<> note(std::vector<std::string>* log, std::string what) {
  co_await this_task::yield();
  log->push_back(what);
}

task<> fail_after(int iterations, std::string what) {
  for (int i = 0; i < iterations; ++i) co_await this_task::yield();
  throw std::runtime_error(what);
}

task<> until_cancelled(int* cancelled) {
  try {
    co_await this_task::sleep_for(std::chrono::hours(1));
  } catch (const CancelledError&) {
    ++*cancelled;
    throw;
  }
}

task<> fail_when_cancelled(std::string what) {
  try {
    co_await this_task::sleep_for(std::chrono::hours(1));
  } catch (const CancelledError&) {
    throw std::runtime_error(what);
  }
}

task<> joins_all(std::vector<std::string>* log) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(note(log, "a"), "first");
  scope.spawn(note(log, "b"));
  CHECK(scope.live() == 2);
  co_await scope.join();
  CHECK(scope.live() == 0);
  log->push_back("joined");
  scope.spawn(note(log, "again"));
  co_await scope.join();
}

task<std::string> first_error(int* cancelled, std::vector<std::string>* later) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(until_cancelled(cancelled));
  scope.spawn(fail_after(3, "the first"));
  scope.spawn(until_cancelled(cancelled));
  scope.spawn(fail_when_cancelled("a later one"));
  std::string caught;
  try {
    co_await scope.join();
  } catch (const std::runtime_error& error) {
    caught = error.what();
  }
  for (const std::exception_ptr& error : scope.later_errors()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      later->push_back(e.what());
    }
  }
  co_return caught;
}

task<> cancels_itself(int* cancelled) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(until_cancelled(cancelled));
  co_await this_task::yield();
  scope.cancel();
  co_await scope.join();  // asked for, so no error
}

task<int> square(int x) {
  co_await this_task::yield();
  co_return x* x;
}

task<int> two_results() {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  Spawned<int> three = scope.start(square(3), "three");
  Spawned<int> four = scope.start(square(4));
  const int a = co_await three;
  const int b = co_await four;
  CHECK(three.ended());
  co_await scope.join();
  co_return a + b;
}

task<int> result_of_a_failure() {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  Spawned<void> failing = scope.start(fail_after(1, "gone"));
  int caught = 0;
  try {
    co_await failing;
  } catch (const CancelledError&) {
    caught += 100;
  } catch (const std::runtime_error&) {
    ++caught;
  }
  try {
    co_await scope.join();
  } catch (const std::runtime_error&) {
    ++caught;
  }
  co_return caught;
}

task<> leaves_unjoined(int* cancelled) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(until_cancelled(cancelled));
  co_await this_task::yield();
  throw std::runtime_error("before the join");
}

task<> leaves_a_failed_child() {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(fail_when_cancelled("of a child that nobody joined"));
  co_await this_task::yield();
}

task<> body_of_scope(Scope& scope, int* cancelled, bool fails) {
  scope.spawn(until_cancelled(cancelled));
  co_await this_task::yield();
  if (fails) throw std::runtime_error("in the body");
  scope.cancel();
}

task<> grow(Scope* scope, std::atomic<int>* count, int depth) {
  count->fetch_add(1);
  if (depth == 0) co_return;
  scope->spawn(grow(scope, count, depth - 1));
  scope->spawn(grow(scope, count, depth - 1));
}

task<> tree(std::atomic<int>* count, int depth) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(grow(&scope, count, depth));
  co_await scope.join();
}

task<> shielded_work(bool* done) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me, Scope::Cancellation::shielded);
  Spawned<int> last_word = scope.start(square(5));
  co_await scope.join();
  *done = last_word.ended();
  co_await this_task::checkpoint();
}

}  // namespace

TEST_CASE("a join waits for all children and the scope can be used again") {
  for (const std::uint64_t seed : testing::seeds(20)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    std::vector<std::string> log;
    sync_wait(executor, joins_all(&log));
    REQUIRE(log.size() == 4);
    CHECK(log[2] == "joined");
    CHECK(log[3] == "again");
  }
}

TEST_CASE("the first error cancels the siblings and later errors are kept behind it") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    int cancelled = 0;
    std::vector<std::string> later;
    CHECK(sync_wait(executor, first_error(&cancelled, &later)) == "the first");
    CHECK(cancelled <= 2);
    CHECK(later == std::vector<std::string>{"a later one"});
    CHECK(executor.now() == TimePoint(0));
  }
}

TEST_CASE("cancelling one's own scope ends its children and is no error") {
  SeededExecutor executor(1, SeededExecutor::Policy::fifo);
  int cancelled = 0;
  sync_wait(executor, cancels_itself(&cancelled));
  CHECK(cancelled == 1);
}

TEST_CASE("a handle gives the result of its child") {
  SeededExecutor executor(3);
  CHECK(sync_wait(executor, two_results()) == 25);
  ThreadExecutor threads(2);
  CHECK(sync_wait(threads, two_results()) == 25);
}

TEST_CASE("the error of a child reaches both its handle and its scope") {
  SeededExecutor executor(3);
  CHECK(sync_wait(executor, result_of_a_failure()) == 2);
}

TEST_CASE("children of a scope that was not joined are cancelled and end before their owner does") {
  SeededExecutor executor(1, SeededExecutor::Policy::fifo);
  int cancelled = 0;
  CHECK_THROWS_WITH_AS(sync_wait(executor, leaves_unjoined(&cancelled)), "before the join", std::runtime_error);
  CHECK(cancelled == 1);
  CHECK(live_frames() == 0);
}

TEST_CASE("an error of a child that nobody joined becomes its owner's") {
  SeededExecutor executor(1, SeededExecutor::Policy::fifo);
  CHECK_THROWS_WITH_AS(sync_wait(executor, leaves_a_failed_child()), "of a child that nobody joined", std::runtime_error);
}

TEST_CASE("with_scope joins whether its body returns or throws") {
  SeededExecutor executor(1, SeededExecutor::Policy::fifo);
  int cancelled = 0;
  sync_wait(executor, with_scope(body_of_scope, &cancelled, false));
  CHECK(cancelled == 1);
  CHECK_THROWS_WITH_AS(sync_wait(executor, with_scope(body_of_scope, &cancelled, true)), "in the body", std::runtime_error);
  CHECK(cancelled == 2);
}

TEST_CASE("children may spawn into the scope that joins them") {
  std::atomic<int> count = 0;
  ThreadExecutor threads(2);
  sync_wait(threads, tree(&count, 10));
  CHECK(count == 2047);
}

TEST_CASE("a shielded scope works on in a cancelled task") {
  SeededExecutor executor(1);
  bool done = false;
  auto running = start_run(executor, shielded_work(&done));
  running.cancel();
  CHECK_THROWS_AS(running.get(), CancelledError);
  CHECK(done);
}
