// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/thread_team.h>

#include <atomic>
#include <cfenv>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("ranges are disjoint, cover everything and are at least a grain long but the last") {
  for (const int threads : {1, 2, 3}) {
    ThreadTeam team(threads);
    CHECK(team.size() == threads);
    for (const std::int64_t count : {0, 1, 2, 7, 100, 1001}) {
      for (const std::int64_t grain : {1, 8, 64}) {
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
        std::atomic<int> short_ranges{0};
        team.parallel(count, grain, [&](std::int64_t begin, std::int64_t end) {
          if (end - begin < grain && end != count) ++short_ranges;
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        for (const auto& visit : visits) REQUIRE(visit == 1);
        REQUIRE(short_ranges == 0);
      }
    }
  }
}

TEST_CASE("a team of two works on two threads, one of them the caller, who does what nobody has begun") {
  ThreadTeam team(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  // The first range waits for the second, so somebody else has to take that.
  std::atomic<bool> second{false};
  team.parallel(2, 1, [&](std::int64_t begin, std::int64_t) {
    while (begin == 0 && !second) std::this_thread::yield();
    second = true;
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  CHECK(ids.size() == 2);
  CHECK(ids.count(std::this_thread::get_id()) == 1);
}

TEST_CASE("a call from inside the team runs alone") {
  ThreadTeam team(2);
  std::atomic<std::int64_t> sum{0};
  team.parallel(2, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) team.parallel(10, 1, [&](std::int64_t from, std::int64_t to) { sum += to - from; });
  });
  CHECK(sum == 20);
}

TEST_CASE("every helper rounds to nearest, whatever the maker of the team had set") {
  std::fesetround(FE_UPWARD);
  ThreadTeam team(2);
  std::atomic<int> upward{0};
  const std::thread::id caller = std::this_thread::get_id();
  team.parallel(2, 1, [&](std::int64_t, std::int64_t) {
    if (std::this_thread::get_id() != caller && std::fegetround() != FE_TONEAREST) ++upward;
  });
  std::fesetround(FE_TONEAREST);
  CHECK(upward == 0);
}

TEST_CASE("many short runs follow each other") {
  ThreadTeam team(2);
  std::atomic<std::int64_t> sum{0};
  for (int run = 0; run < 2000; ++run) team.parallel(4, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  CHECK(sum == 8000);
}

TEST_CASE("a team needs a thread") {
  CHECK_THROWS_WITH_AS(ThreadTeam(0), "thread team: expected at least 1 thread, found 0", ArgumentError);
  CHECK_THROWS_AS(ThreadTeam(-1), ArgumentError);
}
