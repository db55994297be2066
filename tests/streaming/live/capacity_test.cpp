// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/capacity.h>

#include <doctest/doctest.h>

#include <millrace/streaming/live/live_learner.h>
#include <millrace/streaming/live/served_model.h>
#include <streaming/live/live_model.h>
#include <support/predictor.h>

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

TEST_CASE("the capacity of a model whose sessions learn is that of rows and updates, on the first device alone") {
  StreamConfig config;
  config.learn = LearnConfig();
  config.learn->losses = "losses";
  config.learn->k1 = 4;
  config.learn->k2 = 8;
  config.learn->states = {{"h", "h_next"}};
  const Program program = predictor(1);
  const ServedModel model(program, config);
  const std::vector<std::shared_ptr<Device>> two(2);
  const ServedCapacity learned = measure_capacity(model, two, Backend::automatic, 256, Seconds(10), Seconds(0.2));
  CHECK(learned.how == "measured of one session that learns every 4 rows");
  CHECK(learned.steps_per_second > 0);
  const Capacity served = measure_capacity(model.recurrence(), nullptr, Backend::automatic, 256, Seconds(10), Seconds(0.2));
  CHECK(learned.steps_per_second * 5 < served.steps_per_second);
  // A budget that is over at once still shows updates.
  const Capacity least = measure_capacity(model.recurrence(), model.learning(), nullptr, Backend::automatic, Seconds(1e-9));
  CHECK(least.why.empty());
  CHECK(least.steps_per_second * 5 < served.steps_per_second);
}
