// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/gate.h>

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>

using namespace millrace;

namespace {

task<> pass(Gate* gate, std::vector<int>* order, int id) {
  co_await gate->wait();
  order->push_back(id);
}

task<> opens_later(Gate* gate, std::vector<int>* order) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  for (int i = 0; i < 4; ++i) scope.spawn(pass(gate, order, i));
  co_await this_task::yield();
  CHECK_FALSE(gate->is_open());
  gate->open();
  gate->fail(std::make_exception_ptr(std::runtime_error("too late")));
  co_await scope.join();
  co_await gate->wait();
}

}  // namespace

TEST_CASE("a gate lets all who wait pass in their order, and all who come later at once") {
  SeededExecutor executor(1, SeededExecutor::Policy::fifo);
  Gate gate;
  std::vector<int> order;
  sync_wait(executor, opens_later(&gate, &order));
  CHECK(order == std::vector<int>{0, 1, 2, 3});
  CHECK(gate.is_open());
}

TEST_CASE("a gate that failed throws its error in all who wait") {
  SeededExecutor executor(1);
  Gate gate;
  std::vector<int> order;
  gate.fail(std::make_exception_ptr(std::runtime_error("closed for good")));
  CHECK_THROWS_WITH_AS(sync_wait(executor, pass(&gate, &order, 0)), "closed for good", std::runtime_error);
  CHECK_THROWS_WITH_AS(sync_wait(executor, pass(&gate, &order, 0)), "closed for good", std::runtime_error);
}

TEST_CASE("a gate that nobody opens is a deadlock with its name") {
  SeededExecutor executor(1);
  Gate gate("the end of the input");
  std::vector<int> order;
  CHECK_THROWS_WITH_AS(sync_wait(executor, pass(&gate, &order, 0), "reader"),
                       "deadlock in run 'reader': nobody can go on; task 'reader' waits for the end of the input", DeadlockError);
}
