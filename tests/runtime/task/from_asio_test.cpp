// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/from_asio.h>

#include <doctest/doctest.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect_pipe.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/readable_pipe.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/writable_pipe.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <string>
#include <thread>
#include <tuple>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/asio_executor.h>
#include <millrace/runtime/task/async_task.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;
using namespace std::chrono_literals;
using boost::system::error_code;

namespace {

// A pipe whose ends live on a context that a thread of its own runs.
struct Pipe {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard = asio::make_work_guard(context);
  asio::readable_pipe in{context};
  asio::writable_pipe out{context};
  std::thread thread;
  Pipe() {
    asio::connect_pipe(in, out);
    thread = std::thread([this] { context.run(); });
  }
  ~Pipe() {
    guard.reset();
    thread.join();
  }
};

task<> write_all(asio::writable_pipe* out, std::string text) {
  const std::size_t n = co_await asio::async_write(*out, asio::buffer(text), use_task);
  CHECK(n == text.size());
}

task<std::string> read_some(asio::readable_pipe* in) {
  std::array<char, 64> bytes{};
  const std::size_t n = co_await in->async_read_some(asio::buffer(bytes), use_task);
  co_return std::string(bytes.data(), n);
}

task<std::string> read_by_initiation(asio::readable_pipe* in) {
  std::array<char, 64> bytes{};
  auto read = [&](auto handler) { in->async_read_some(asio::buffer(bytes), std::move(handler)); };
  const std::size_t n = co_await from_asio<void(error_code, std::size_t)>(in->get_executor(), read);
  co_return std::string(bytes.data(), n);
}

task<std::string> echo(Pipe* pipe) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(write_all(&pipe->out, "hello"));
  std::string first = co_await read_some(&pipe->in);
  scope.spawn(write_all(&pipe->out, ", world"));
  std::string second = co_await read_by_initiation(&pipe->in);
  co_await scope.join();
  CHECK(me.executor().running_in_this_thread());
  co_return first + second;
}

task<std::tuple<error_code, std::size_t>> read_as_tuple(asio::readable_pipe* in) {
  std::array<char, 4> bytes{};
  std::tuple<error_code, std::size_t> result = co_await asio::async_read(*in, asio::buffer(bytes), asio::as_tuple(use_task));
  co_return result;
}

task<std::string> read_in_time(asio::readable_pipe* in, Duration deadline) {
  task<std::string> work = read_some(in);
  std::string text = co_await with_deadline(deadline, std::move(work));
  co_return text;
}

task<> without_executor(asio::steady_timer* timer) {
  auto wait = [&](auto handler) { timer->async_wait(std::move(handler)); };
  co_await from_asio<void(error_code)>(wait);
}

task<> initiation_throws(asio::io_context* context) {
  auto start = [](auto) { throw std::runtime_error("cannot start"); };
  co_await from_asio<void(error_code)>(context->get_executor(), start);
}

task<int> nap_on(asio::io_context* context) {
  asio::steady_timer timer(*context, 1ms);
  co_await timer.async_wait(use_task);
  co_return 2;
}

task<int> inner() { co_return 20; }

// An initiating function of our own, awaited as any other.
task<int> awaits_our_own(Executor* executor) {
  auto start = [executor](auto handler) { async_start(*executor, inner(), std::move(handler)); };
  asio::system_executor anywhere;
  const int value = co_await from_asio<void(std::exception_ptr, int)>(anywhere, start);
  co_return value;
}

}  // namespace

TEST_CASE("a task on any executor awaits operations of Asio and goes on on its own") {
  Pipe pipe;
  ThreadExecutor threads(2);
  AsioExecutor same_context(pipe.context);
  CHECK(sync_wait(threads, echo(&pipe)) == "hello, world");
  CHECK(sync_wait(same_context, echo(&pipe)) == "hello, world");
}

TEST_CASE("an error code is thrown, unless a tuple is asked for") {
  Pipe pipe;
  AsioExecutor executor(pipe.context);
  pipe.out.close();
  try {
    sync_wait(executor, read_some(&pipe.in));
    FAIL("expected an error");
  } catch (const AsioError& error) {
    CHECK(error.code() == asio::error::eof);
  }
  const auto [error, n] = sync_wait(executor, read_as_tuple(&pipe.in));
  CHECK(error == asio::error::eof);
  CHECK(n == 0);
}

TEST_CASE("cancelling a task ends its operation, at any moment") {
  Pipe pipe;
  ThreadExecutor threads(2);
  AsioExecutor same_context(pipe.context);
  for (Executor* executor : {static_cast<Executor*>(&threads), static_cast<Executor*>(&same_context)}) {
    for (int i = 0; i < 50; ++i) {
      auto running = start_run(*executor, read_some(&pipe.in));
      if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(10 * i));
      running.cancel();
      CHECK_THROWS_AS(running.get(), CancelledError);
      CHECK(live_frames() == 0);
    }
    CHECK_THROWS_AS(sync_wait(*executor, read_in_time(&pipe.in, 2ms)), DeadlineError);
  }
}

TEST_CASE("an operation that cannot be started says why") {
  asio::io_context context(1);
  ThreadExecutor threads(1);
  asio::steady_timer timer(context);
  CHECK_THROWS_AS(sync_wait(threads, without_executor(&timer)), UnsupportedError);
  auto guard = asio::make_work_guard(context);
  std::thread thread([&] { context.run(); });
  CHECK_THROWS_WITH_AS(sync_wait(threads, initiation_throws(&context)), "cannot start", std::runtime_error);
  guard.reset();
  thread.join();
}

TEST_CASE("an embedder that runs the context alone sees tasks and timers through to their end") {
  asio::io_context context(1);
  AsioExecutor executor(context);
  auto running = start_run(executor, nap_on(&context));
  context.run();
  CHECK(running.get() == 2);
}

TEST_CASE("our own initiating functions are operations like any other") {
  ThreadExecutor threads(1);
  ThreadExecutor others(1);
  CHECK(sync_wait(threads, awaits_our_own(&others)) == 20);
}
