// SPDX-License-Identifier: Apache-2.0
// The forms of await that this code base writes, on every compiler that it supports. g++ 12.2 copies some temporaries
// of a full expression with co_await bitwise and destroys them twice; each object here counts, so that such a copy
// shows.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/when_all.h>

using namespace millrace;

namespace {

// Alive objects, and whether one was used at an address where it was not made.
class Tracked {
 public:
  explicit Tracked(int* alive, int value = 0) : alive_(alive), self_(this), value_(value) { ++*alive_; }
  Tracked(const Tracked& other) : alive_(other.alive_), self_(this), value_(other.value()) { ++*alive_; }
  Tracked(Tracked&& other) noexcept : alive_(other.alive_), self_(this), value_(other.value()) { ++*alive_; }
  Tracked& operator=(const Tracked& other) {
    if (this != &other) value_ = other.value();
    return *this;
  }
  ~Tracked() {
    if (self_ != this) *alive_ += 1000;
    --*alive_;
  }
  int value() const { return self_ == this ? value_ : -1; }

 private:
  int* alive_;
  Tracked* self_;
  int value_;
};

task<int> value_of(Tracked tracked) {
  co_await this_task::yield();
  co_return tracked.value();
}

task<Tracked> make(int* alive, int value) {
  co_await this_task::yield();
  co_return Tracked(alive, value);
}

task<int> a_call_with_a_temporary_argument(int* alive) {
  const int value = co_await value_of(Tracked(alive, 3));
  co_return value;
}

task<int> a_named_operand(int* alive) {
  task<int> operand = value_of(Tracked(alive, 4));
  const int value = co_await std::move(operand);
  co_return value;
}

task<int> a_result_with_a_destructor(int* alive) {
  Tracked result = co_await make(alive, 5);
  co_return result.value();
}

task<int> branches_instead_of_a_conditional(int* alive, bool left) {
  int value = 0;
  if (left) {
    Tracked result = co_await make(alive, 6);
    value = result.value();
  } else {
    Tracked result = co_await make(alive, 7);
    value = result.value();
  }
  co_return value;
}

task<int> one_await_in_a_statement(int* alive) {
  Tracked first = co_await make(alive, 8);
  Tracked second = co_await make(alive, 9);
  const std::pair<Tracked, Tracked> both(first, second);
  co_return both.first.value() * 10 + both.second.value();
}

task<int> a_loop_over_moved_tasks(int* alive) {
  std::vector<task<int>> works;
  for (int i = 0; i < 4; ++i) works.push_back(value_of(Tracked(alive, i)));
  std::vector<int> values = co_await when_all(std::move(works));
  int sum = 0;
  for (const int value : values) sum += value;
  co_return sum;
}

task<int> an_await_that_throws_past_locals(int* alive) {
  Tracked local(alive, 1);
  Gate gate;
  gate.fail(std::make_exception_ptr(std::string("gone")));
  try {
    Tracked inner(alive, 2);
    co_await gate.wait();
  } catch (const std::string& error) {
    co_return static_cast<int>(error.size()) + local.value();
  }
  co_return 0;
}

task<int> a_lambda_without_captures(int* alive) {
  constexpr auto body = [](int* counter) -> task<int> {
    Tracked local(counter, 11);
    co_await this_task::yield();
    co_return local.value();
  };
  task<int> work = body(alive);
  const int value = co_await std::move(work);
  co_return value;
}

int run(task<int> work) {
  SeededExecutor executor(1);
  return sync_wait(executor, std::move(work));
}

}  // namespace

TEST_CASE("the forms of await that this code base uses neither copy nor destroy an object twice") {
  int alive = 0;
  CHECK(run(a_call_with_a_temporary_argument(&alive)) == 3);
  CHECK(run(a_named_operand(&alive)) == 4);
  CHECK(run(a_result_with_a_destructor(&alive)) == 5);
  CHECK(run(branches_instead_of_a_conditional(&alive, true)) == 6);
  CHECK(run(branches_instead_of_a_conditional(&alive, false)) == 7);
  CHECK(run(one_await_in_a_statement(&alive)) == 89);
  CHECK(run(a_loop_over_moved_tasks(&alive)) == 6);
  CHECK(run(an_await_that_throws_past_locals(&alive)) == 5);
  CHECK(run(a_lambda_without_captures(&alive)) == 11);
  CHECK(alive == 0);
}
