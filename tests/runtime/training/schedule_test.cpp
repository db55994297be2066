// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <doctest/doctest.h>

#include <millrace/runtime/training/schedule.h>
#include <millrace/tensor/error.h>

using namespace millrace;
using training::Schedule;

namespace {

Schedule of(Schedule::Kind kind) {
  Schedule schedule;
  schedule.kind = kind;
  schedule.base = 0.8;
  schedule.every = 10;
  schedule.factor = 0.5;
  schedule.decay_steps = 100;
  schedule.least = 0.2;
  return schedule;
}

}  // namespace

TEST_CASE("a schedule gives the rates of its formula") {
  CHECK(of(Schedule::Kind::constant).at(7) == 0.8);
  CHECK(of(Schedule::Kind::step).at(9) == 0.8);
  CHECK(of(Schedule::Kind::step).at(29) == doctest::Approx(0.2));
  CHECK(of(Schedule::Kind::exponential).at(5) == doctest::Approx(0.8 * std::sqrt(0.5)));
  CHECK(of(Schedule::Kind::linear).at(50) == doctest::Approx(0.5));
  CHECK(of(Schedule::Kind::linear).at(1000) == doctest::Approx(0.2));
  CHECK(of(Schedule::Kind::cosine).at(0) == doctest::Approx(0.8));
  CHECK(of(Schedule::Kind::cosine).at(50) == doctest::Approx(0.5));
  CHECK(of(Schedule::Kind::cosine).at(100) == doctest::Approx(0.2));
}

TEST_CASE("a warm-up rises to the base rate, and the schedule begins behind it") {
  Schedule schedule = of(Schedule::Kind::linear);
  schedule.warmup = 4;
  CHECK(schedule.at(0) == doctest::Approx(0.2));
  CHECK(schedule.at(3) == doctest::Approx(0.8));
  CHECK(schedule.at(4) == doctest::Approx(0.8));
  CHECK(schedule.at(54) == doctest::Approx(0.5));
}

TEST_CASE("numbers out of range are refused by name") {
  Schedule schedule = of(Schedule::Kind::step);
  CHECK_THROWS_WITH_AS(schedule.at(-1), doctest::Contains("a step of at least 0"), ArgumentError);
  schedule.every = 0;
  CHECK_THROWS_AS(schedule.at(1), ArgumentError);
  schedule = of(Schedule::Kind::cosine);
  schedule.decay_steps = 0;
  CHECK_THROWS_AS(schedule.at(1), ArgumentError);
  schedule.base = std::nan("");
  CHECK_THROWS_AS(schedule.at(1), ArgumentError);
}
