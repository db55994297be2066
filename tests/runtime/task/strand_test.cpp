// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/strand.h>

#include <doctest/doctest.h>

#include <string>

#include "support/random.h"

#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;

namespace {

// Unguarded on purpose: only the strand keeps these from racing.
task<> count(long* counter, int iterations) {
  for (int i = 0; i < iterations; ++i) {
    ++*counter;
    co_await this_task::yield();
  }
}

task<> many(Executor* below, long* counter) {
  TaskInfo& me = co_await this_task::info();
  const std::shared_ptr<Strand> strand = Strand::on(*below);
  CHECK(strand->serial());
  Scope scope(me);
  for (int i = 0; i < 20; ++i) scope.spawn_on(*strand, count(counter, 50));
  co_await scope.join();
}

task<> append(std::string* log, char name) {
  log->push_back(name);
  co_return;
}

task<> in_order(Executor* below, std::string* log) {
  TaskInfo& me = co_await this_task::info();
  const std::shared_ptr<Strand> strand = Strand::on(*below);
  Scope scope(me);
  for (char name = 'a'; name <= 'h'; ++name) scope.spawn_on(*strand, append(log, name));
  co_await scope.join();
}

}  // namespace

TEST_CASE("tasks on one strand of many threads need no lock among themselves") {
  ThreadExecutor threads(3);
  long counter = 0;
  sync_wait(threads, many(&threads, &counter));
  CHECK(counter == 1000);
}

TEST_CASE("a strand keeps the order of posting whatever the executor below does") {
  for (const std::uint64_t seed : testing::seeds(20)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    std::string log;
    sync_wait(executor, in_order(&executor, &log));
    CHECK(log == "abcdefgh");
  }
}
