// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/start_thread.h>

#include <doctest/doctest.h>

#include <millrace/tensor/thread_team.h>

#include "support/no_threads.h"

using namespace millrace;

TEST_CASE("a thread that cannot start is an error that says which and why") {
  const testing::NoThreads none;
  CHECK_THROWS_WITH_AS(start_thread("heartbeat", [] {}),
                       doctest::Contains("heartbeat: expected a thread, found that the system starts none: "), ThreadError);
  CHECK_THROWS_WITH_AS(ThreadTeam(3), doctest::Contains("thread team: thread 2 of 3: expected a thread"), ThreadError);
}

TEST_CASE("a thread that can start runs") {
  bool ran = false;
  start_thread("runner", [&] { ran = true; }).join();
  CHECK(ran);
}
