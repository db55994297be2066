// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/point.h>

#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "support/random.h"

using namespace millrace;

namespace {

/// Writes down that it was completed.
class Note final : public Waiter {
 public:
  explicit Note(int name, std::vector<int>* log = nullptr) : name_(name), log_(log) {}
  void complete(std::exception_ptr error) noexcept override {
    ++completed;
    failed = error != nullptr;
    if (log_ != nullptr) log_->push_back(name_);
  }
  int completed = 0;
  bool failed = false;

 private:
  int name_;
  std::vector<int>* log_;
};

std::exception_ptr broken(const char* what = "broken") { return std::make_exception_ptr(std::runtime_error(what)); }

}  // namespace

TEST_CASE("a point made by default is reached") {
  const Point point;
  CHECK(point.reached());
  CHECK(point.error() == nullptr);
  CHECK_NOTHROW(point.wait());
  CHECK(point == Point());
}

TEST_CASE("a point is reached when its timeline is at its value or beyond") {
  const auto timeline = std::make_shared<Timeline>();
  const Point point(timeline, 3);
  CHECK_FALSE(point.reached());
  timeline->advance(2);
  CHECK_FALSE(point.reached());
  timeline->advance(5);
  CHECK(point.reached());
  timeline->advance(1);
  CHECK(timeline->reached() == 5);
  CHECK(point == Point(timeline, 3));
  CHECK(point != Point(timeline, 4));
}

TEST_CASE("waiters complete once, in the order of registration, when their value is reached") {
  Timeline timeline;
  std::vector<int> log;
  Note a(1, &log), b(2, &log), c(3, &log);
  CHECK(timeline.add(a, 2));
  CHECK(timeline.add(b, 1));
  CHECK(timeline.add(c, 2));
  timeline.advance(1);
  CHECK(log == std::vector<int>{2});
  timeline.advance(2);
  CHECK(log == std::vector<int>{2, 1, 3});
  timeline.advance(3);
  CHECK(log.size() == 3);
}

TEST_CASE("a waiter for what is reached is not taken") {
  Timeline timeline;
  timeline.advance(4);
  Note note(1);
  CHECK_FALSE(timeline.add(note, 4));
  CHECK(note.completed == 0);
}

TEST_CASE("a waiter that was taken back is not completed") {
  Timeline timeline;
  Note a(1), b(2);
  timeline.add(a, 1);
  timeline.add(b, 1);
  CHECK(timeline.remove(a));
  CHECK_FALSE(timeline.remove(a));
  timeline.advance(1);
  CHECK(a.completed == 0);
  CHECK(b.completed == 1);
  CHECK_FALSE(timeline.remove(b));
}

TEST_CASE("a failure completes every waiter that is left with the error, and the first error stays") {
  const auto timeline = std::make_shared<Timeline>();
  Note early(1), late(2);
  timeline->add(early, 1);
  timeline->add(late, 9);
  timeline->advance(1);
  timeline->fail(broken("first"));
  timeline->fail(broken("second"));
  CHECK_FALSE(early.failed);
  CHECK(late.failed);
  CHECK(late.completed == 1);
  CHECK_THROWS_WITH(Point(timeline, 9).check(), "first");
  CHECK_THROWS_WITH(Point(timeline, 9).wait(), "first");
  CHECK_NOTHROW(Point(timeline, 1).check());
  Note after(3);
  CHECK_FALSE(timeline->add(after, 9));
}

TEST_CASE("a failed timeline advances no more") {
  const auto timeline = std::make_shared<Timeline>();
  timeline->fail(broken());
  timeline->advance(1);
  CHECK_FALSE(Point(timeline, 1).reached());
  CHECK(Point(timeline, 1).error() != nullptr);
}

TEST_CASE("waiting blocks until another thread advances") {
  const auto timeline = std::make_shared<Timeline>();
  int produced = 0;
  std::thread producer([&] {
    produced = 42;
    timeline->advance(1);
  });
  Point(timeline, 1).wait();
  CHECK(produced == 42);
  producer.join();
}

TEST_CASE("waiters added, taken back and completed by several threads each see exactly one outcome") {
  for (const std::uint64_t seed : testing::seeds(20)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    Timeline timeline;
    std::vector<std::unique_ptr<Note>> notes;
    for (int i = 0; i < 100; ++i) notes.push_back(std::make_unique<Note>(i));
    std::vector<std::uint64_t> values;
    for (int i = 0; i < 100; ++i) values.push_back(static_cast<std::uint64_t>(random.between(1, 50)));
    std::vector<int> outcomes(100, 0);
    std::thread advancing([&] {
      for (std::uint64_t value = 1; value <= 50; ++value) timeline.advance(value);
    });
    for (std::size_t i = 0; i < 100; ++i) {
      if (!timeline.add(*notes[i], values[i]))
        outcomes[i] = 1;
      else if (i % 3 == 0 && timeline.remove(*notes[i]))
        outcomes[i] = 1;
    }
    advancing.join();
    for (std::size_t i = 0; i < 100; ++i) CHECK(outcomes[i] + notes[i]->completed == 1);
  }
}
