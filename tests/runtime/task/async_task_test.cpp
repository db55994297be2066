// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/async_task.h>

#include <doctest/doctest.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <cstddef>
#include <future>
#include <new>
#include <stdexcept>
#include <thread>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/asio_executor.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

task<int> doubled(int x) {
  co_await this_task::yield();
  co_return 2 * x;
}

task<> fails() {
  co_await this_task::yield();
  throw std::runtime_error("no answer");
}

task<> sleeps() { co_await this_task::sleep_for(1h); }

// An initiating function as the library's public ones are.
template <class Token>
auto async_doubled(Executor& executor, int x, Token&& token) {
  return async_start(executor, doubled(x), std::forward<Token>(token), "async_doubled");
}

asio::awaitable<int> awaits(Executor* executor) {
  const int first = co_await async_doubled(*executor, 4, asio::use_awaitable);
  auto later = async_doubled(*executor, first, asio::deferred);
  const int second = co_await std::move(later)(asio::use_awaitable);
  co_return second;
}

asio::awaitable<bool> awaits_a_failure(Executor* executor) {
  try {
    co_await async_start(*executor, fails(), asio::use_awaitable);
  } catch (const std::runtime_error&) {
    co_return true;
  }
  co_return false;
}

template <class T>
class CountingAllocator {
 public:
  using value_type = T;
  explicit CountingAllocator(int* live, int* total) noexcept : live_(live), total_(total) {}
  template <class U>
  CountingAllocator(const CountingAllocator<U>& other) noexcept : live_(other.live_), total_(other.total_) {}
  T* allocate(std::size_t n) {
    ++*live_;
    ++*total_;
    return static_cast<T*>(::operator new(n * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t) noexcept {
    --*live_;
    ::operator delete(memory);
  }
  template <class U>
  bool operator==(const CountingAllocator<U>& other) const noexcept {
    return live_ == other.live_;
  }

 private:
  template <class U>
  friend class CountingAllocator;
  int* live_;
  int* total_;
};

}  // namespace

TEST_CASE("a callback without an executor is called on the context of the task, or on its thread") {
  asio::io_context context(1);
  AsioExecutor executor(context);
  int result = 0;
  bool inside = false;
  async_doubled(executor, 21, [&](std::exception_ptr error, int value) {
    CHECK(error == nullptr);
    CHECK_FALSE(inside);
    result = value;
    CHECK(context.get_executor().running_in_this_thread());
  });
  inside = true;
  CHECK(result == 0);
  inside = false;
  context.run();
  CHECK(result == 42);

  ThreadExecutor threads(1);
  std::promise<bool> on_thread;
  async_doubled(threads, 21, [&](std::exception_ptr, int) { on_thread.set_value(threads.running_in_this_thread()); });
  CHECK(on_thread.get_future().get());
}

TEST_CASE("what a handler throws comes out of the loop of the embedder") {
  asio::io_context context(1);
  AsioExecutor executor(context);
  async_doubled(executor, 1, [](std::exception_ptr, int) { throw std::runtime_error("in the handler"); });
  CHECK_THROWS_WITH_AS(context.run(), "in the handler", std::runtime_error);
}

TEST_CASE("a callback is called on its associated executor, which is kept running until then") {
  asio::io_context context(1);
  ThreadExecutor executor(1);
  std::thread::id called_on;
  auto handler = [&](std::exception_ptr, int) { called_on = std::this_thread::get_id(); };
  async_doubled(executor, 1, asio::bind_executor(context, handler));
  context.run();
  CHECK(called_on == std::this_thread::get_id());
}

TEST_CASE("a future gives the result or the error") {
  ThreadExecutor executor(1);
  CHECK(async_doubled(executor, 3, asio::use_future).get() == 6);
  auto failing = async_start(executor, fails(), asio::use_future);
  CHECK_THROWS_WITH_AS(failing.get(), "no answer", std::runtime_error);
}

TEST_CASE("use_awaitable and deferred give the result or the error to a coroutine of Asio") {
  asio::io_context context(1);
  AsioExecutor on_context(context);
  ThreadExecutor on_thread(1);
  for (Executor* executor : {static_cast<Executor*>(&on_context), static_cast<Executor*>(&on_thread)}) {
    auto value = asio::co_spawn(context, awaits(executor), asio::use_future);
    auto failed = asio::co_spawn(context, awaits_a_failure(executor), asio::use_future);
    context.restart();
    context.run();
    CHECK(value.get() == 16);
    CHECK(failed.get());
  }
}

TEST_CASE("a deferred operation starts when it is called") {
  asio::io_context context(1);
  AsioExecutor executor(context);
  auto operation = async_doubled(executor, 5, asio::deferred);
  context.run();
  int result = 0;
  std::move(operation)([&](std::exception_ptr, int value) { result = value; });
  context.restart();
  context.run();
  CHECK(result == 10);
}

TEST_CASE("the associated allocator serves the handler and gets everything back before it is called") {
  asio::io_context context(1);
  AsioExecutor executor(context);
  int live = 0;
  int total = 0;
  int live_in_handler = -1;
  auto handler = [&](std::exception_ptr, int) { live_in_handler = live; };
  async_doubled(executor, 1, asio::bind_allocator(CountingAllocator<int>(&live, &total), handler));
  CHECK(live >= 1);
  context.run();
  CHECK(total >= 1);
  CHECK(live_in_handler == 0);
  CHECK(live == 0);
}

TEST_CASE("a cancellation signal cancels the run, which completes with CancelledError") {
  asio::io_context context(1);
  AsioExecutor on_context(context);
  ThreadExecutor on_thread(1);
  for (Executor* executor : {static_cast<Executor*>(&on_context), static_cast<Executor*>(&on_thread)}) {
    asio::cancellation_signal signal;
    bool cancelled = false;
    auto handler = [&](std::exception_ptr error) {
      REQUIRE(error != nullptr);
      CHECK_THROWS_WITH_AS(std::rethrow_exception(error), "task 'sleeper' was cancelled", CancelledError);
      cancelled = true;
    };
    async_start(*executor, sleeps(), asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(context, handler)), "sleeper");
    asio::post(context, [&] { signal.emit(asio::cancellation_type::terminal); });
    context.restart();
    context.run();
    CHECK(cancelled);
    signal.emit(asio::cancellation_type::terminal);
  }
}
