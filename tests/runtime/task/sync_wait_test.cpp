// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/sync_wait.h>

#include <doctest/doctest.h>

#include <string>

#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

task<int> one() { co_return 1; }

task<std::string> blocks(Executor* executor) {
  try {
    sync_wait(*executor, one());
  } catch (const BlockingError& error) {
    co_return error.what();
  }
  co_return "did not throw";
}

task<> nap() { co_await this_task::sleep_for(1s); }

}  // namespace

TEST_CASE("sync_wait on a thread that runs tasks throws, whichever executor it would wait for") {
  ThreadExecutor threads(1);
  ThreadExecutor others(1);
  SeededExecutor seeded(1);
  const std::string expected = "sync_wait on a thread that runs tasks would block them: expected another thread, or co_await";
  CHECK(sync_wait(threads, blocks(&threads)) == expected);
  CHECK(sync_wait(threads, blocks(&others)) == expected);
  CHECK(sync_wait(seeded, blocks(&seeded)) == expected);
}

TEST_CASE("sync_wait says what is waited for when a manual clock stands still") {
  SeededExecutor executor(1);
  CHECK_THROWS_WITH_AS(sync_wait(executor, nap(), "nap"),
                       "run 'nap' did not end: its executor has nothing to run at the present time of its clock; task 'nap' waits "
                       "for a timer of 1000000000 ns",
                       BlockingError);
  CHECK(live_frames() == 0);
}
