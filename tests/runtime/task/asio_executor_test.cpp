// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/asio_executor.h>

#include <doctest/doctest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <string>
#include <thread>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

task<int> nap(Duration duration, int value) {
  co_await this_task::sleep_for(duration);
  co_return value;
}

task<std::string> order_of_timers() {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  std::string order;
  const auto append = [](std::string* to, Duration duration, char name) -> task<> {
    co_await this_task::sleep_for(duration);
    to->push_back(name);
  };
  scope.spawn(append(&order, 9ms, 'c'));
  scope.spawn(append(&order, 1ms, 'a'));
  scope.spawn(append(&order, 5ms, 'b'));
  co_await scope.join();
  co_return order;
}

task<int> with_late_deadline() {
  task<int> work = nap(1ms, 6);
  const int value = co_await with_deadline(1h, std::move(work));
  co_return value;
}

}  // namespace

TEST_CASE("io_context::run returns when nothing is queued and no timer is left") {
  asio::io_context context(1);
  AsioExecutor executor(context);
  auto order = start_run(executor, order_of_timers());
  auto value = start_run(executor, with_late_deadline());
  context.run();
  CHECK(order.ended());
  CHECK(order.get() == "abc");
  CHECK(value.get() == 6);
}

TEST_CASE("tasks and handlers of the embedder take turns on one thread") {
  asio::io_context context(1);
  AsioExecutor executor(context);
  auto running = start_run(executor, [](Executor* on) -> task<int> {
    for (int i = 0; i < 10; ++i) co_await this_task::yield();
    co_return on->running_in_this_thread() ? 1 : 0;
  }(&executor));
  int handlers = 0;
  asio::post(context, [&] {
    ++handlers;
    CHECK_FALSE(executor.running_in_this_thread());
    CHECK_FALSE(running.ended());
  });
  context.run();
  CHECK(running.get() == 1);
  CHECK(handlers == 1);
}

TEST_CASE("another thread may block on a run while the context runs") {
  asio::io_context context(1);
  auto guard = asio::make_work_guard(context);
  std::thread thread([&] { context.run(); });
  AsioExecutor executor(context);
  CHECK(sync_wait(executor, nap(1ms, 8)) == 8);
  for (int i = 0; i < 100; ++i) CHECK_THROWS_AS(sync_wait(executor, with_deadline(10us, nap(1h, 1))), DeadlineError);
  guard.reset();
  thread.join();
}

TEST_CASE("blocking inside a handler of the context throws instead of waiting for itself") {
  asio::io_context context(1);
  AsioExecutor executor(context);
  bool threw = false;
  asio::post(context, [&] {
    auto running = start_run(executor, nap(0ms, 1));
    try {
      running.get();
    } catch (const BlockingError&) {
      threw = true;
    }
  });
  context.run();
  CHECK(threw);
}
