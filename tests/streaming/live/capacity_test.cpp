// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/capacity.h>

#include <doctest/doctest.h>

#include <streaming/live/live_model.h>

using namespace millrace;
using namespace millrace::testing;

using Seconds = std::chrono::duration<double>;

TEST_CASE("a capacity is that of ticks within the deadline, of one row where none is") {
  Random random(1);
  const auto recurrence = recurrence_of(live_listing(random, 3, 4));
  const Capacity some = measure_capacity(recurrence, nullptr, Backend::automatic, 256, Seconds(10), Seconds(0.1));
  CHECK(some.why.empty());
  CHECK(some.steps_per_second > 100);
  CHECK(some.rows > 1);
  CHECK(some.rows <= 256);
  CHECK(measure_capacity(recurrence, nullptr, Backend::automatic, 256, Seconds(1e-12), Seconds(0.05)).rows == 1);
  CHECK(measure_capacity(recurrence, nullptr, Backend::automatic, 1, Seconds(10), Seconds(0.05)).rows == 1);
}

TEST_CASE("a program over integers is measured with an index that its table has") {
  RecurrenceOptions options;
  options.states = {{"sum", "next_sum"}};
  CHECK(measure_capacity(recurrence_of(live_lookup(), options), nullptr, Backend::automatic, 4, Seconds(1), Seconds(0.05)).why.empty());
}
