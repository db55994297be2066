// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/prefer.hpp>

#include <millrace/runtime/task/start_run.h>

namespace millrace {

/// The completion signature of `async_start`: `void(std::exception_ptr)` or `void(std::exception_ptr, T)`, T being T() beside
/// an error.
template <class T>
struct AsyncSignature {
  static_assert(std::is_default_constructible_v<T>, "a completion handler gets T() beside an error");
  using type = void(std::exception_ptr, T);
};
template <>
struct AsyncSignature<void> {
  using type = void(std::exception_ptr);
};
template <class T>
using AsyncHandler = boost::asio::any_completion_handler<typename AsyncSignature<T>::type>;

/// Where a handler is called. The work that is counted there keeps that executor running.
class CompletionPlace {
 public:
  /// The handler's associated executor; without one, Asio's executor below an AsioExecutor; else the thread on which the
  /// run ends. Calls are posted there, not made inside the end of a run, so that what a handler throws comes out of the
  /// embedder's own loop.
  template <class Handler>
  static CompletionPlace of(const Handler& handler, const Executor& executor) {
    return CompletionPlace(posting(boost::asio::get_associated_executor(handler, fallback(executor))));
  }

  template <class Call>
  void call(Call call) noexcept {
    if (executor_) {
      boost::asio::any_completion_executor executor = std::move(executor_);
      boost::asio::dispatch(executor, std::move(call));
    } else {
      call();
    }
  }

 private:
  explicit CompletionPlace(boost::asio::any_completion_executor executor);
  static boost::asio::any_completion_executor fallback(const Executor& executor);
  template <class E>
  static boost::asio::any_completion_executor posting(const E& executor) {
    if constexpr (boost::asio::can_prefer_v<E, boost::asio::execution::blocking_t::never_t>) {
      return boost::asio::prefer(executor, boost::asio::execution::blocking.never);
    } else {
      return executor;
    }
  }

  boost::asio::any_completion_executor executor_;  // empty for the thread on which the run ends
};

/// Gives, when an operation is initiated, what its run uses and keeps alive, the executor included.
using KeepAlive = std::function<std::shared_ptr<const void>()>;

/// Calls the handler once the run has ended.
template <class T>
class AsyncCompletion {
 public:
  AsyncCompletion(AsyncHandler<T> handler, CompletionPlace place, std::shared_ptr<const void> kept) noexcept
      : kept_(std::move(kept)), handler_(std::move(handler)), place_(std::move(place)) {}

  void operator()(Outcome<T> outcome) noexcept {
    CompletionPlace place = std::move(place_);
    place.call(Call(std::move(handler_), std::move(outcome)));
  }

 private:
  class Call {
   public:
    Call(AsyncHandler<T> handler, Outcome<T> outcome) noexcept : handler_(std::move(handler)), outcome_(std::move(outcome)) {}

    using allocator_type = boost::asio::associated_allocator_t<AsyncHandler<T>>;
    allocator_type get_allocator() const noexcept { return boost::asio::get_associated_allocator(handler_); }

    void operator()() {
      auto slot = boost::asio::get_associated_cancellation_slot(handler_);
      if (slot.is_connected()) slot.clear();
      const std::exception_ptr error = outcome_.error();
      if constexpr (std::is_void_v<T>) {
        std::move(handler_)(error);
      } else if (error != nullptr) {
        std::move(handler_)(error, T());
      } else {
        std::move(handler_)(error, outcome_.take());
      }
    }

   private:
    AsyncHandler<T> handler_;
    Outcome<T> outcome_;
  };

  std::shared_ptr<const void> kept_;
  AsyncHandler<T> handler_;
  CompletionPlace place_;
};

/// Cancels a run when its slot is signalled, for any type of cancellation.
class AsyncCancel {
 public:
  explicit AsyncCancel(Ref<Run> run) noexcept : run_(std::move(run)) {}
  void operator()(boost::asio::cancellation_type) const noexcept { run_->cancel(); }

 private:
  Ref<Run> run_;
};

/// The type-erased core of every `async_x`: starts `work` as a run on `executor`. `kept` is let go of when nothing of the run is left.
template <class T>
void start_async(Executor& executor, task<T> work, std::string name, AsyncHandler<T> handler, CompletionPlace place,
                 std::shared_ptr<const void> kept = nullptr) {
  Ref<Run> run(new Run(std::move(name)));
  auto slot = boost::asio::get_associated_cancellation_slot(handler);
  if (slot.is_connected()) slot.assign(AsyncCancel(run));
  AsyncCompletion<T> done(std::move(handler), std::move(place), std::move(kept));
  RootTask<T, AsyncCompletion<T>>::start(executor, std::move(run), std::move(work), std::move(done));
}

/// Starts `work` as a run of its own on `executor`, for any completion token: a callback, use_future, use_awaitable,
/// deferred, …. The handler is called once, never inside this call: on its associated executor; else, if `executor` is
/// an AsioExecutor, on Asio's executor below it; else on a thread of `executor`, where it must not throw. Its associated
/// allocator serves the allocations made for it; a signal on its associated cancellation slot cancels the run, which
/// then completes with CancelledError. As with all of Asio, a slot is signalled on the handler's executor. The value of `keep`
/// lives until nothing of the run is left and its handler was called or posted. EmptyTaskError for a task without work.
template <class T, class Token>
auto async_start(Executor& executor, task<T> work, Token&& token, std::string name = "async", KeepAlive keep = {}) {
  work.check_unstarted();
  return boost::asio::async_initiate<Token, typename AsyncSignature<T>::type>(
      [](auto handler, Executor* on, task<T> body, std::string called, KeepAlive keeps) {
        CompletionPlace place = CompletionPlace::of(handler, *on);
        AsyncHandler<T> erased(std::move(handler));
        start_async<T>(*on, std::move(body), std::move(called), std::move(erased), std::move(place), keeps ? keeps() : nullptr);
      },
      token, &executor, std::move(work), std::move(name), std::move(keep));
}

}  // namespace millrace
