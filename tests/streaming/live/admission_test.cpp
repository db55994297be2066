// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/admission.h>

#include <set>

#include <doctest/doctest.h>

using namespace millrace;

namespace {

using std::chrono::milliseconds;

Admission::Options options(double capacity, double rate, bool by_transport = false) {
  Admission::Options made;
  made.capacity = capacity;
  made.session_rate = rate;
  made.by_transport = by_transport;
  return made;
}

/// The number of so many newcomers at once that get in, beside those that live.
std::size_t admitted(Admission& admission, std::size_t newcomers, std::size_t live = 0) {
  std::size_t in = 0;
  for (std::size_t i = 0; i < newcomers; ++i) {
    if (admission.refuse(live + in)) continue;
    admission.started();
    ++in;
  }
  return in;
}

const Admission::TimePoint begin{};

}  // namespace

TEST_CASE("of any number of newcomers at once as many get in as the capacity holds, before anything is measured") {
  for (const std::size_t offered : {40, 80, 400}) {
    Admission admission(options(1000, 25), begin);
    CHECK(admitted(admission, offered) == 40);
    const auto refused = admission.refuse(40);
    REQUIRE(refused);
    CHECK(refused->why == "with another session about 1025 steps a second would be asked for, and this server holds 1000");
  }
}

TEST_CASE("sessions that do less than their rate leave room once that has been seen, those that do more count for their rate") {
  Admission idle(options(1000, 25), begin), busy(options(1000, 25), begin);
  CHECK(admitted(idle, 40) == 40);
  CHECK(admitted(busy, 40) == 40);
  for (int second = 1; second <= 3; ++second) {
    idle.observe(begin + milliseconds(1000 * second), static_cast<std::uint64_t>(100 * second), 0);
    busy.observe(begin + milliseconds(1000 * second), static_cast<std::uint64_t>(90000 * second), 0);
  }
  CHECK(idle.load(40) == 100.0);
  CHECK(admitted(idle, 100, 40) == 36);
  CHECK(busy.load(40) == 1000.0);
  CHECK(admitted(busy, 1, 40) == 0);
  CHECK(admitted(busy, 1, 39) == 1);  // one ended
}

TEST_CASE("those who are refused are told to come back at different times from 1 to 3 s") {
  Admission admission(options(10, 25), begin);
  std::set<std::uint32_t> times;
  for (int i = 0; i < 100; ++i) times.insert(admission.refuse(0)->retry_after_ms);
  CHECK(times.size() == 16);
  CHECK(*times.begin() >= 1000);
  CHECK(*times.rbegin() <= 3000);
}

TEST_CASE("what the sockets cost a step lowers a capacity that was measured, and not one that was said") {
  for (const bool by_transport : {false, true}) {
    Admission admission(options(1e6, 25, by_transport), begin);
    admission.observe(begin + milliseconds(1000), 10, 0.5);  // too few to say anything
    CHECK(admission.capacity() == 1e6);
    admission.observe(begin + milliseconds(1500), 9000, 0.6);  // not due
    admission.observe(begin + milliseconds(2000), 10010, 0.5 + 0.9);
    CHECK(admission.capacity() == doctest::Approx(by_transport ? 10000.0 : 1e6));
  }
}

TEST_CASE("what sessions of other models need is gone from the capacity, until nothing is left") {
  Admission first(options(1000, 25), begin), second(options(200, 10), begin);
  CHECK(admitted(first, 20) == 20);
  CHECK(first.share(20) == 0.5);
  std::size_t in = 0;
  for (; !second.refuse(in, first.share(20)); ++in) second.started();
  CHECK(in == 10);
  CHECK(first.share(20) + second.share(10) == 1.0);
  const auto refused = first.refuse(20, second.share(10));
  REQUIRE(refused);
  CHECK(refused->why ==
        "with another session about 525 steps a second would be asked for, and this server holds 500 beside its other models");
  CHECK(first.refuse(0, 1.5));  // more than there is: a capacity that was measured lower than before
  CHECK(Admission(options(0, 25), begin).share(1000) == 0.0);
}

TEST_CASE("without a capacity or a rate nobody is refused") {
  Admission none(options(0, 25), begin), rates(options(100, 0), begin);
  CHECK(admitted(none, 5000) == 5000);
  CHECK(admitted(rates, 5000) == 5000);
}
