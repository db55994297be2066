// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/cpu_stream.h>

#include <cfenv>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "support/random.h"

using namespace millrace;

namespace {
struct Fixture {
  std::shared_ptr<ThreadTeam> team = std::make_shared<ThreadTeam>(1);
  CpuStream owner{team};
  StreamRef stream{owner};
  std::vector<int> log;
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
  void note(int value) {
    stream.enqueue([this, value](ThreadTeam&) { log.push_back(value); });
  }
};
}  // namespace

TEST_CASE_FIXTURE(Fixture, "work runs at once in its caller when nothing is before it") {
  std::thread::id ran;
  stream.enqueue([&](ThreadTeam&) { ran = std::this_thread::get_id(); });
  CHECK(ran == std::this_thread::get_id());
  CHECK(stream.position().reached());
}

TEST_CASE_FIXTURE(Fixture, "work behind a point that is not reached runs, in order, when it is") {
  stream.wait(Point(timeline, 1));
  note(1);
  const Point first = stream.position();
  note(2);
  CHECK(log.empty());
  CHECK_FALSE(first.reached());
  timeline->advance(1);
  CHECK(log == std::vector<int>{1, 2});
  CHECK(first.reached());
  CHECK(stream.position().reached());
  note(3);
  CHECK(log.size() == 3);
}

TEST_CASE_FIXTURE(Fixture, "queued work runs on the thread that reaches the point") {
  std::thread::id ran;
  stream.wait(Point(timeline, 1));
  stream.enqueue([&](ThreadTeam&) { ran = std::this_thread::get_id(); });
  std::thread other([&] { timeline->advance(1); });
  const std::thread::id expected = other.get_id();
  other.join();
  CHECK(ran == expected);
}

TEST_CASE_FIXTURE(Fixture, "waiting for what is reached, or for itself, is free") {
  stream.wait(Point());
  owner.wait(Point());
  note(1);
  owner.wait(stream.position());
  note(2);
  CHECK(log == std::vector<int>{1, 2});
}

TEST_CASE_FIXTURE(Fixture, "work enqueued by work runs after it") {
  stream.enqueue([&](ThreadTeam&) {
    note(2);
    log.push_back(1);
  });
  CHECK(log == std::vector<int>{1, 2});
}

TEST_CASE_FIXTURE(Fixture, "an error in the caller is thrown there and the stream goes on") {
  CHECK_THROWS_WITH(stream.enqueue([](ThreadTeam&) { throw std::runtime_error("here"); }), "here");
  note(1);
  CHECK(log == std::vector<int>{1});
  CHECK(stream.position().reached());
}

TEST_CASE_FIXTURE(Fixture, "an error of queued work fails the stream, and what follows does not run") {
  stream.wait(Point(timeline, 1));
  note(1);
  const Point before = stream.position();
  stream.enqueue([](ThreadTeam&) { throw std::runtime_error("later"); });
  note(2);
  const Point after = stream.position();
  timeline->advance(1);
  CHECK(log == std::vector<int>{1});
  CHECK(before.reached());
  CHECK_THROWS_WITH(after.check(), "later (on cpu)");
  note(3);
  CHECK(log.size() == 1);
  CHECK_THROWS_WITH(stream.position().check(), "later (on cpu)");
}

TEST_CASE_FIXTURE(Fixture, "a point that fails, before or while it is waited for, fails the stream") {
  SUBCASE("while") {
    stream.wait(Point(timeline, 1));
    note(1);
    timeline->fail(std::make_exception_ptr(std::runtime_error("gone")));
  }
  SUBCASE("before") {
    timeline->fail(std::make_exception_ptr(std::runtime_error("gone")));
    stream.wait(Point(timeline, 1));
    note(1);
  }
  CHECK(log.empty());
  CHECK_THROWS_WITH(stream.position().check(), "gone");
}

TEST_CASE_FIXTURE(Fixture, "work rounds to nearest and the caller gets its own back") {
  volatile float tiny = 1e-10f;
  volatile float inside = 0.0f;
  std::fesetround(FE_DOWNWARD);
  stream.enqueue([&](ThreadTeam&) { inside = 1.0f - tiny; });
  volatile float outside = 1.0f - tiny;
  std::fesetround(FE_TONEAREST);
  CHECK(inside == 1.0f);
  CHECK(outside < 1.0f);
}

TEST_CASE("work enqueued from several threads runs one at a time and all of it") {
  const auto team = std::make_shared<ThreadTeam>(1);
  CpuStream owner(team);
  int unguarded = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) StreamRef(owner).enqueue([&](ThreadTeam&) { ++unguarded; });
    });
  for (std::thread& thread : threads) thread.join();
  owner.position().wait();
  CHECK(unguarded == 1500);
}

TEST_CASE("streams that wait for one another keep every order that the points give") {
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const auto team = std::make_shared<ThreadTeam>(1);
    CpuStream a(team), b(team);
    const auto gate = std::make_shared<Timeline>();
    StreamRef streams[] = {a, b};
    streams[0].wait(Point(gate, 1));
    std::vector<int> log;
    std::vector<std::pair<int, int>> before;  // (earlier, later)
    int last[2] = {-1, -1};
    for (int i = 0; i < 20; ++i) {
      const auto on = static_cast<std::size_t>(random.between(0, 1));
      if (random.coin() && last[1 - on] >= 0) {
        streams[on].wait(streams[1 - on].position());
        before.emplace_back(last[1 - on], i);
      }
      if (last[on] >= 0) before.emplace_back(last[on], i);
      streams[on].enqueue([&log, i](ThreadTeam&) { log.push_back(i); });
      last[on] = i;
    }
    gate->advance(1);
    REQUIRE(log.size() == 20);
    std::vector<int> position(20);
    for (int i = 0; i < 20; ++i) position[static_cast<std::size_t>(log[static_cast<std::size_t>(i)])] = i;
    for (const auto& [earlier, later] : before)
      CHECK(position[static_cast<std::size_t>(earlier)] < position[static_cast<std::size_t>(later)]);
  }
}
