// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>

#include <millrace/runtime/task/cancellation.h>
#include <millrace/runtime/task/wait.h>

namespace millrace {

/// A socket, timer or other Asio operation that failed.
class AsioError : public IoError {
 public:
  explicit AsioError(const boost::system::error_code& code) : IoError(code.message()), code_(code) {}
  const boost::system::error_code& code() const noexcept { return code_; }

 private:
  boost::system::error_code code_;
};

/// The result of an operation for a task: a leading error_code or exception_ptr is thrown, the rest is
/// void, the value, or a tuple of the values.
template <class... Values>
struct AsioValues {
  using type = std::tuple<Values...>;
};
template <class T>
struct AsioValues<T> {
  using type = T;
};
template <>
struct AsioValues<> {
  using type = void;
};
template <class... Args>
struct AsioResult : AsioValues<Args...> {
  static constexpr bool throws = false;
};
template <class... Args>
struct AsioResult<boost::system::error_code, Args...> : AsioValues<Args...> {
  static constexpr bool throws = true;
};
template <class... Args>
struct AsioResult<std::exception_ptr, Args...> : AsioValues<Args...> {
  static constexpr bool throws = true;
};

/// Asio's executor below the task's AsioExecutor; UnsupportedError when the task runs elsewhere.
boost::asio::any_io_executor asio_executor_of(const TaskInfo& task);

template <class Signature, class Initiation>
class AsioWait;

/// The wait for one Asio operation; see `from_asio`.
template <class... Args, class Initiation>
class AsioWait<void(Args...), Initiation> final : public ExternalWait {
  using Result = AsioResult<std::decay_t<Args>...>;

 public:
  AsioWait(std::optional<boost::asio::any_io_executor> executor, Initiation initiation)
      : executor_(std::move(executor)), initiation_(std::move(initiation)) {}

  typename Result::type await_resume() {
    Wait::await_resume();
    if constexpr (Result::throws) check(std::get<0>(*results_));
    return take(std::make_index_sequence<sizeof...(Args) - (Result::throws ? 1 : 0)>());
  }

 private:
  // Outlives the wait while a cancellation is under way. But for `cancelled`, used on the operation's executor alone.
  struct Operation {
    explicit Operation(boost::asio::any_io_executor on) : executor(std::move(on)) {}
    boost::asio::any_io_executor executor;
    boost::asio::cancellation_signal signal;
    std::atomic<bool> cancelled{false};
    bool started = false;
    bool completed = false;
  };

  class Handler {
   public:
    Handler(std::shared_ptr<Operation> operation, AsioWait& wait) noexcept : operation_(std::move(operation)), wait_(&wait) {}

    using executor_type = boost::asio::any_io_executor;
    executor_type get_executor() const noexcept { return operation_->executor; }
    using cancellation_slot_type = boost::asio::cancellation_slot;
    cancellation_slot_type get_cancellation_slot() const noexcept { return operation_->signal.slot(); }

    void operator()(Args... args) {
      operation_->completed = true;
      wait_->results_.emplace(std::move(args)...);
      wait_->wake();
    }

   private:
    std::shared_ptr<Operation> operation_;
    AsioWait* wait_;
  };

  Armed arm() noexcept override {
    try {
      operation_ = std::make_shared<Operation>(executor_ ? std::move(*executor_) : asio_executor_of(task()));
    } catch (...) {
      arm_error_ = std::current_exception();
    }
    return Armed::start;
  }

  // The wait is gone as soon as the operation completes, which may be inside the initiation: nothing of it is touched
  // after that began.
  void start() noexcept override {
    if (arm_error_ != nullptr) return wake(arm_error_);
    try {
      boost::asio::dispatch(operation_->executor, [this, operation = operation_] { initiate(operation); });
    } catch (...) {
      wake(std::current_exception());
    }
  }

  void initiate(const std::shared_ptr<Operation>& operation) {
    if (operation->cancelled.load(std::memory_order_acquire)) return wake(make_cancelled_error(task()));
    operation->started = true;
    Initiation initiation = std::move(initiation_);
    try {
      initiation(Handler(operation, *this));
    } catch (...) {
      if (!operation->completed) wake(std::current_exception());
    }
  }

  // The operation itself ends the wait, once it has heard of the cancellation.
  bool disarm() noexcept override {
    if (operation_ == nullptr || operation_->cancelled.exchange(true, std::memory_order_acq_rel)) return false;
    boost::asio::post(operation_->executor, [operation = operation_] {
      if (operation->started && !operation->completed) operation->signal.emit(boost::asio::cancellation_type::all);
    });
    return false;
  }

  std::string describe() const override { return "an Asio operation"; }

  void check(const boost::system::error_code& code) const {
    if (!code) return;
    if (code == boost::asio::error::operation_aborted && task().cancelled()) std::rethrow_exception(make_cancelled_error(task()));
    throw AsioError(code);
  }
  void check(const std::exception_ptr& error) const {
    if (error != nullptr) std::rethrow_exception(error);
  }

  template <std::size_t... I>
  typename Result::type take(std::index_sequence<I...>) {
    constexpr std::size_t first = Result::throws ? 1 : 0;
    if constexpr (sizeof...(I) == 1) {
      return std::get<first>(std::move(*results_));
    } else if constexpr (sizeof...(I) > 1) {
      return typename Result::type(std::get<first + I>(std::move(*results_))...);
    }
  }

  std::optional<boost::asio::any_io_executor> executor_;
  Initiation initiation_;
  std::shared_ptr<Operation> operation_;
  std::exception_ptr arm_error_;
  std::optional<std::tuple<std::decay_t<Args>...>> results_;
};

/// Awaits any Asio operation: `initiation` is called with a completion handler of the given signature and starts the
/// operation with it.
///
///     auto read = [&](auto handler) { socket.async_read_some(buffer, std::move(handler)); };
///     std::size_t n = co_await from_asio<void(boost::system::error_code, std::size_t)>(read);
///
/// A leading error_code is thrown as AsioError, a leading exception_ptr is rethrown; CancelledError when the task was
/// cancelled. An external wait of the run; the task goes on on its own executor. Cancelling the task signals the
/// operation's cancellation slot, and the wait ends when the operation does. Initiation, signal and completion happen
/// on `executor`, by default that of the task's AsioExecutor: it must be run by one thread, or be a strand, and must
/// run until the operation has completed.
template <class Signature, class Initiation>
AsioWait<Signature, Initiation> from_asio(Initiation initiation) {
  return AsioWait<Signature, Initiation>(std::nullopt, std::move(initiation));
}
template <class Signature, class Initiation>
AsioWait<Signature, Initiation> from_asio(boost::asio::any_io_executor executor, Initiation initiation) {
  return AsioWait<Signature, Initiation>(std::move(executor), std::move(initiation));
}

/// `from_asio` as a completion token: `std::size_t n = co_await socket.async_read_some(buffer, use_task);`. The operation
/// starts when awaited. Its executor is that of the I/O object.
class UseTask {
 public:
  constexpr UseTask() noexcept {}
};
inline constexpr UseTask use_task;

/// An initiation with its arguments, kept until the operation is awaited.
template <class Initiation, class... Args>
class BoundInitiation {
 public:
  template <class I, class... A>
  explicit BoundInitiation(I&& initiation, A&&... args) : initiation_(std::forward<I>(initiation)), args_(std::forward<A>(args)...) {}
  template <class Handler>
  void operator()(Handler handler) {
    const auto start = [&](Args&... args) { std::move(initiation_)(std::move(handler), std::move(args)...); };
    std::apply(start, args_);
  }

 private:
  Initiation initiation_;
  std::tuple<Args...> args_;
};

}  // namespace millrace

template <class... Results>
class boost::asio::async_result<millrace::UseTask, void(Results...)> {
 public:
  template <class Initiation, class... Args>
  static auto initiate(Initiation&& initiation, millrace::UseTask, Args&&... args) {
    using Bound = millrace::BoundInitiation<std::decay_t<Initiation>, std::decay_t<Args>...>;
    std::optional<any_io_executor> executor;
    if constexpr (requires { any_io_executor(initiation.get_executor()); }) executor.emplace(initiation.get_executor());
    return millrace::AsioWait<void(Results...), Bound>(std::move(executor),
                                                       Bound(std::forward<Initiation>(initiation), std::forward<Args>(args)...));
  }
};
