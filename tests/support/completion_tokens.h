// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory_resource>
#include <optional>
#include <utility>

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>

namespace millrace::testing {

/// Counts what is allocated and not given back.
class CountingMemory final : public std::pmr::memory_resource {
 public:
  int total = 0;
  int live = 0;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++total;
    ++live;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
    --live;
    std::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

/// Runs `context` until `done` holds a value: other operations may stay pending on it.
template <class T>
void run_until(asio::io_context& context, const std::optional<T>& done) {
  const auto guard = asio::make_work_guard(context);
  context.restart();
  while (!done) context.run_one();
}

template <class Start>
asio::awaitable<void> started_in_a_coroutine(Start* start) {
  co_await (*start)(asio::use_awaitable);
}

/// Runs `body` on `context`, whose other operations may stay pending; its error, or null.
inline std::exception_ptr run_coroutine(asio::io_context& context, asio::awaitable<void> body) {
  std::optional<std::exception_ptr> ended;
  asio::co_spawn(context, std::move(body), [&](std::exception_ptr error) { ended = error; });
  run_until(context, ended);
  return *ended;
}

/// A completion handler that tells what `value` is when it is called. Handlers are types of their own, not lambdas of the function below, so that
/// operations with one signature share the code that Asio makes for them.
struct TellsValue {
  std::optional<bool>* told;
  const bool* value;
  template <class... Results>
  void operator()(Results&&...) const {
    *told = *value;
  }
};

/// A completion handler that tells whether a strand runs it.
struct TellsStrand {
  std::optional<bool>* told;
  const asio::strand<asio::io_context::executor_type>* strand;
  template <class... Results>
  void operator()(Results&&...) const {
    *told = strand->running_in_this_thread();
  }
};

/// Starts an operation that succeeds, `start(token)`, once with each kind of completion token, and runs it on `context`.
template <class Start>
void check_completion_tokens(asio::io_context& context, Start start) {
  {
    INFO("a callback");
    bool inside = true;
    std::optional<bool> called;
    start(TellsValue{&called, &inside});
    inside = false;
    run_until(context, called);
    CHECK_FALSE(*called);  // never inside the call
  }
  {
    INFO("use_future");
    auto future = start(asio::use_future);
    // The result is set on a thread of the system executor, which wakes nobody here.
    while (future.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      context.restart();
      context.poll();
    }
    CHECK_NOTHROW(future.get());
  }
  {
    INFO("use_awaitable");
    CHECK(run_coroutine(context, started_in_a_coroutine(&start)) == nullptr);
  }
  {
    INFO("deferred");
    const bool is_called = true;
    std::optional<bool> called;
    auto operation = start(asio::deferred);
    std::move(operation)(TellsValue{&called, &is_called});
    run_until(context, called);
    CHECK(*called);
  }
  {
    INFO("an associated executor and allocator");
    const auto strand = asio::make_strand(context);
    CountingMemory memory;
    std::optional<bool> called;
    start(asio::bind_allocator(std::pmr::polymorphic_allocator<>(&memory), asio::bind_executor(strand, TellsStrand{&called, &strand})));
    CHECK(memory.total > 0);
    run_until(context, called);
    CHECK(*called);
    CHECK(memory.live == 0);
  }
}

/// Starts an operation that would stay pending, cancels it by its slot, and hands what it completed with to `check`.
template <class Start, class Check>
void check_cancellation(asio::io_context& context, Start start, Check check) {
  asio::cancellation_signal signal;
  std::optional<bool> called;
  start(asio::bind_cancellation_slot(signal.slot(), [&](auto&&... result) {
    check(result...);
    called = true;
  }));
  asio::post(context, [&] { signal.emit(asio::cancellation_type::terminal); });
  run_until(context, called);
}

}  // namespace millrace::testing
