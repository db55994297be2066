// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/timer_queue.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "support/random.h"

using namespace millrace;

namespace {

class TestTimer final : public Timer {
 public:
  void fire() noexcept override {}
};

}  // namespace

TEST_CASE("timers come out by time and then by order of adding, whatever was added and removed in between") {
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    TimerQueue queue;
    std::deque<TestTimer> timers(40);
    std::map<std::pair<TimePoint, int>, Timer*> expected;
    int order = 0;
    for (int iteration = 0; iteration < 400; ++iteration) {
      TestTimer& timer = timers[static_cast<std::size_t>(random.between(0, 39))];
      const auto known = std::find_if(expected.begin(), expected.end(), [&](const auto& e) { return e.second == &timer; });
      REQUIRE(queue.remove(timer) == (known != expected.end()));
      if (known != expected.end()) expected.erase(known);
      if (random.coin()) {
        const TimePoint when(random.between(0, 15));
        queue.add(timer, when);
        expected.emplace(std::pair(when, order++), &timer);
      }
      if (random.between(0, 3) != 0) continue;
      const TimePoint now(random.between(0, 15));
      Timer* due = queue.pop_due(now);
      if (expected.empty() || expected.begin()->first.first > now) {
        REQUIRE(due == nullptr);
      } else {
        REQUIRE(due == expected.begin()->second);
        expected.erase(expected.begin());
      }
      REQUIRE(queue.empty() == expected.empty());
    }
  }
}
