// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/seeded_executor.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "support/random.h"

#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>

using namespace millrace;
using Policy = SeededExecutor::Policy;

namespace {

task<> worker(std::string* log, char name) {
  for (int i = 0; i < 3; ++i) {
    log->push_back(name);
    co_await this_task::yield();
  }
}

task<> workers(std::string* log) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  for (const char name : {'a', 'b', 'c', 'd'}) scope.spawn(worker(log, name));
  co_await scope.join();
}

struct Trace {
  std::string log;
  std::uint64_t hash;
  bool operator==(const Trace&) const = default;
};

Trace trace(std::uint64_t seed, Policy policy) {
  SeededExecutor executor(seed, policy);
  Trace result{};
  sync_wait(executor, workers(&result.log));
  result.hash = executor.trace_hash();
  return result;
}

// Two queues of numbered steps, as two streams of a device would be.
class TwoQueues final : public ChoiceSource {
 public:
  std::size_t choices() override { return (left_[0] != 0) + (left_[1] != 0); }
  void take(std::size_t i) override {
    const std::size_t queue = left_[0] == 0 ? 1 : i;
    --left_[queue];
    log.push_back(queue == 0 ? 'x' : 'y');
  }
  std::string log;

 private:
  int left_[2] = {3, 3};
};

task<> sleeper(Duration duration, std::string* log, char name) {
  co_await this_task::sleep_for(duration);
  log->push_back(name);
}

task<> sleepers(std::string* log) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(sleeper(std::chrono::seconds(3), log, 'c'));
  scope.spawn(sleeper(std::chrono::seconds(1), log, 'a'));
  scope.spawn(sleeper(std::chrono::seconds(2), log, 'b'));
  co_await scope.join();
}

}  // namespace

TEST_CASE("a seed replays to the same order and the same trace hash") {
  for (const Policy policy : {Policy::random, Policy::pct, Policy::fifo}) {
    for (const std::uint64_t seed : testing::seeds(100)) {
      INFO("seed ", seed);
      CHECK(trace(seed, policy) == trace(seed, policy));
    }
  }
}

TEST_CASE("a thousand seeds make more than a hundred different schedules") {
  for (const Policy policy : {Policy::random, Policy::pct}) {
    std::set<std::uint64_t> hashes;
    std::set<std::string> orders;
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
      const Trace made = trace(seed, policy);
      hashes.insert(made.hash);
      orders.insert(made.log);
    }
    INFO("policy ", static_cast<int>(policy), ": ", hashes.size(), " hashes, ", orders.size(), " orders");
    CHECK(hashes.size() >= (policy == Policy::random ? 900 : 24));
    CHECK(orders.size() >= (policy == Policy::random ? 900 : 24));
  }
}

TEST_CASE("first in first out runs tasks in the order of posting") {
  CHECK(trace(1, Policy::fifo).log == "abcdabcdabcd");
  CHECK(trace(1, Policy::fifo) == trace(2, Policy::fifo));
}

TEST_CASE("sources are scheduled by the same seed among the tasks") {
  std::set<std::string> orders;
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed, seed % 2 == 0 ? Policy::random : Policy::pct);
    TwoQueues queues;
    executor.add_source(queues);
    sync_wait(executor, workers(&queues.log));
    executor.run();
    executor.remove_source(queues);
    CHECK(queues.log.size() == 18);
    CHECK(std::count(queues.log.begin(), queues.log.end(), 'x') == 3);
    orders.insert(queues.log);
  }
  CHECK((orders.size() > 40 || testing::seeds(50).size() < 50));
}

TEST_CASE("time stands still unless somebody moves it") {
  SeededExecutor executor(1);
  std::string log;
  auto running = start_run(executor, sleepers(&log));
  executor.run();
  CHECK(executor.now() == TimePoint(0));
  CHECK(log.empty());
  executor.advance(std::chrono::milliseconds(1500));
  CHECK(log == "a");
  CHECK(executor.now() == std::chrono::milliseconds(1500));
  executor.auto_advance(true);
  executor.run();
  CHECK(log == "abc");
  CHECK(executor.now() == std::chrono::seconds(3));
  running.get();
}
