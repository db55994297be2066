// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/run.h>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/random.h"
#include "support/test_slot.h"

#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;
using namespace std::chrono_literals;
using testing::TestSlot;
using testing::TestWriter;

namespace {

// Claims `own`, then reads `other` before it writes: two of these with crossed slots never get anywhere.
task<> read_before_write(TestSlot* other, TestSlot* own) {
  TaskInfo& me = co_await this_task::info();
  TestWriter writer(*own, me);
  co_await this_task::yield();
  const int value = co_await other->read();
  own->write(value + 1);
}

task<> read(TestSlot* slot, int* value) { *value = co_await slot->read(); }

task<> sleep_long(bool* ended) {
  co_await this_task::sleep_for(1h);
  *ended = true;
}

struct Cross {
  TestSlot a{"slot 3 of array 'a'"};
  TestSlot b{"slot 4 of array 'b'"};
  bool slept = false;
};

task<std::string> crossed(Cross* cross, bool with_timer) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(read_before_write(&cross->a, &cross->b), "left");
  scope.spawn(read_before_write(&cross->b, &cross->a), "right");
  if (with_timer) scope.spawn(sleep_long(&cross->slept), "sleeper");
  std::string what;
  try {
    co_await scope.join();
  } catch (const DeadlockError& error) {
    what = error.what();
    CHECK(error.waiters().size() == (with_timer ? 2 : 3));
  }
  co_return what;
}

task<int> reads_what_nobody_writes(TestSlot* slot) {
  const int value = co_await slot->read();
  co_return value;
}

task<> writes_later(TestSlot* slot, int value) {
  TaskInfo& me = co_await this_task::info();
  TestWriter writer(*slot, me);
  for (int i = 0; i < 5; ++i) co_await this_task::yield();
  slot->write(value);
}

// A ring of tasks: each reads the slot of the one before and then writes its own. Without a start it is a deadlock of
// all.
task<> ring(std::vector<std::unique_ptr<TestSlot>>* slots, bool started) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const std::size_t n = slots->size();
  for (std::size_t i = 0; i < n; ++i) {
    scope.spawn(read_before_write((*slots)[(i + n - 1) % n].get(), (*slots)[i].get()), "ring " + std::to_string(i));
  }
  if (started) scope.spawn(writes_later(slots->back().get(), 0));
  co_await scope.join();
}

// The parent claims a slot that its child reads, and joins the child before it would write.
task<> parent_joins_its_reader(TestSlot* slot) {
  TaskInfo& me = co_await this_task::info();
  TestWriter writer(*slot, me);
  Scope scope(me);
  int value = 0;
  scope.spawn(read(slot, &value), "reader");
  co_await scope.join();
  slot->write(1);
}

// As above, but a second child, which is not known as a writer, has not ended: it may be the one that writes.
task<int> another_child_writes(TestSlot* slot) {
  TaskInfo& me = co_await this_task::info();
  TestWriter writer(*slot, me);
  Scope scope(me);
  int value = 0;
  scope.spawn(read(slot, &value), "reader");
  scope.spawn(writes_later(slot, 9), "the unknown writer");
  co_await scope.join();
  co_return value;
}

task<int> fed_from_outside(TestSlot* slot, std::unique_ptr<ExternalHold>* hold) {
  TaskInfo& me = co_await this_task::info();
  *hold = std::make_unique<ExternalHold>(me.run());
  const int value = co_await slot->read();
  co_return value;
}

}  // namespace

TEST_CASE("a slot that nobody writes is named with the clock standing still") {
  SeededExecutor executor(1);
  TestSlot slot("slot 3 of array 'states', iteration 2 of loop 'while_1'");
  CHECK_THROWS_WITH_AS(sync_wait(executor, reads_what_nobody_writes(&slot), "listing"),
                       "deadlock in run 'listing': nobody can go on; task 'listing' waits for slot 3 of array 'states', "
                       "iteration 2 of loop 'while_1'",
                       DeadlockError);
  CHECK(executor.now() == TimePoint(0));
}

TEST_CASE("two tasks that wait for each other fail, each named, under every schedule") {
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    Cross cross;
    const std::string what = sync_wait(executor, crossed(&cross, false), "main");
    CHECK(what.find("task 'left' waits for slot 3 of array 'a'") != std::string::npos);
    CHECK(what.find("task 'right' waits for slot 4 of array 'b'") != std::string::npos);
  }
}

TEST_CASE("a cycle of writers is found while another task of the run waits for a timer") {
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    Cross cross;
    const std::string what = sync_wait(executor, crossed(&cross, true), "main");
    CHECK(what.find("task 'left' waits for slot 3 of array 'a'") != std::string::npos);
    CHECK(executor.now() == TimePoint(0));
    CHECK_FALSE(cross.slept);
  }
  ThreadExecutor threads(2);
  for (int i = 0; i < 50; ++i) {
    Cross cross;
    CHECK(sync_wait(threads, crossed(&cross, true)) != "");
  }
}

TEST_CASE("a ring of tasks is a deadlock of all of them, and none when one slot is written from elsewhere") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    for (const bool started : {false, true}) {
      SeededExecutor executor(seed);
      std::vector<std::unique_ptr<TestSlot>> slots;
      for (int i = 0; i < 12; ++i) slots.push_back(std::make_unique<TestSlot>("slot " + std::to_string(i)));
      if (started) {
        // The last of the ring writes the slot a second time, which a TestSlot ignores.
        sync_wait(executor, ring(&slots, true));
      } else {
        CHECK_THROWS_AS(sync_wait(executor, ring(&slots, false)), DeadlockError);
      }
    }
  }
}

TEST_CASE("a writer that joins its own reader is a deadlock") {
  for (const std::uint64_t seed : testing::seeds(20)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    TestSlot slot("slot 0");
    CHECK_THROWS_AS(sync_wait(executor, parent_joins_its_reader(&slot)), DeadlockError);
  }
}

TEST_CASE("a live child of a writer may still write: no false alarm") {
  for (const std::uint64_t seed : testing::seeds(200)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    TestSlot slot("slot 0");
    CHECK(sync_wait(executor, another_child_writes(&slot)) == 9);
  }
}

TEST_CASE("other runs go on when one is deadlocked") {
  SeededExecutor executor(7);
  Cross cross;
  TestSlot slot("slot 1");
  auto other = start_run(executor, another_child_writes(&slot), "other");
  auto dead = start_run(executor, crossed(&cross, false), "dead");
  executor.run();
  CHECK(dead.ended());
  CHECK(other.ended());
  CHECK(other.get() == 9);
  CHECK(dead.get() != "");
}

TEST_CASE("a live writer in another run keeps a wait alive") {
  SeededExecutor executor(1, SeededExecutor::Policy::fifo);
  TestSlot slot("slot 1");
  auto writer = start_run(executor, writes_later(&slot, 4), "writer");
  auto reader = start_run(executor, reads_what_nobody_writes(&slot), "reader");
  executor.run();
  CHECK(reader.get() == 4);
  writer.get();
}

TEST_CASE("a hold keeps a run alive that is fed from outside, and its end is found") {
  SeededExecutor executor(1);
  for (const bool written : {true, false}) {
    TestSlot slot("row 5 of the input");
    std::unique_ptr<ExternalHold> hold;
    auto running = start_run(executor, fed_from_outside(&slot, &hold));
    executor.run();
    CHECK_FALSE(running.ended());
    CHECK(running.run().waits() == std::vector<std::string>{"task 'run' waits for row 5 of the input"});
    if (written) slot.write(8);
    hold.reset();
    if (written) {
      CHECK(running.get() == 8);
    } else {
      CHECK_THROWS_AS(running.get(), DeadlockError);
    }
  }
}

TEST_CASE("nothing is lost and nothing is called a deadlock when slots are written from other threads at any moment") {
  ThreadExecutor threads(2);
  for (int i = 0; i < 300; ++i) {
    TestSlot slot("slot 0");
    REQUIRE(sync_wait(threads, another_child_writes(&slot)) == 9);
  }
}
