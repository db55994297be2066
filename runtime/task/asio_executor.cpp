// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/asio_executor.h>

#include <chrono>
#include <mutex>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/timer_queue.h>

namespace millrace {
namespace {

/// Whether the calling thread is inside a handler of an executor that has the type `E`.
template <class E>
bool inside(const asio::any_io_executor& executor) {
  const E* const held = executor.target<E>();
  return held != nullptr && held->running_in_this_thread();
}

asio::any_io_executor present(asio::any_io_executor executor) {
  if (!executor) throw ArgumentError("AsioExecutor: expected an executor, found an empty one");
  return executor;
}

}  // namespace

// Shared with the handlers that the context holds, which may outlive the executor.
class AsioExecutor::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const AsioExecutor& executor, asio::any_io_executor where) : place(std::move(where)), executor_(executor), alarm_(place) {}

  // One handler at a time drains the queue, so posting costs a handler only when the executor was at rest.
  void post(Runnable& runnable) noexcept {
    {
      std::lock_guard lock(mutex_);
      ready_.push(runnable);
      if (std::exchange(draining_, true)) return;
    }
    post_drain();
  }

  void add_timer(Timer& timer, TimePoint when) noexcept {
    std::lock_guard lock(mutex_);
    timers_.add(timer, when);
    set_alarm();
  }

  bool cancel_timer(Timer& timer) noexcept {
    std::lock_guard lock(mutex_);
    if (!timers_.remove(timer)) return false;
    if (timers_.empty()) stop_alarm();
    return true;
  }

  void close() noexcept {
    std::lock_guard lock(mutex_);
    stop_alarm();
  }

  const asio::any_io_executor place;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

 private:
  void post_drain() noexcept {
    asio::post(place, [core = shared_from_this()] { core->drain(); });
  }

  void drain() noexcept {
    RunnableQueue batch;
    {
      std::lock_guard lock(mutex_);
      batch = ready_.take();
    }
    {
      const RuntimeThread thread(executor_);
      while (Runnable* next = batch.pop()) next->execute();
    }
    {
      std::lock_guard lock(mutex_);
      if (ready_.empty()) {
        draining_ = false;
        return;
      }
    }
    post_drain();
  }

  // Asio's timer is guarded by the mutex; its handlers never run inside these calls.
  void set_alarm() noexcept {
    if (timers_.empty() || (alarm_set_ && alarm_at_ <= timers_.next())) return;
    alarm_set_ = true;
    alarm_at_ = timers_.next();
    alarm_.expires_at(start + alarm_at_);
    alarm_.async_wait([core = shared_from_this(), at = alarm_at_](const boost::system::error_code& error) {
      if (!error) core->fire_due(at);
    });
  }

  void stop_alarm() noexcept {
    alarm_set_ = false;
    alarm_.cancel();
  }

  void fire_due(TimePoint now) noexcept {
    const RuntimeThread thread(executor_);
    std::unique_lock lock(mutex_);
    if (alarm_at_ == now) alarm_set_ = false;
    while (Timer* due = timers_.pop_due(now)) {
      lock.unlock();
      due->fire();
      lock.lock();
    }
    set_alarm();
  }

  const AsioExecutor& executor_;
  std::mutex mutex_;
  RunnableQueue ready_;
  bool draining_ = false;
  TimerQueue timers_;
  asio::steady_timer alarm_;
  bool alarm_set_ = false;
  TimePoint alarm_at_{};
};

AsioExecutor::AsioExecutor(asio::io_context& context) : AsioExecutor(asio::any_io_executor(context.get_executor())) {}
AsioExecutor::AsioExecutor(asio::any_io_executor executor) : core_(std::make_shared<Core>(*this, present(std::move(executor)))) {}
AsioExecutor::~AsioExecutor() { core_->close(); }

const asio::any_io_executor& AsioExecutor::executor() const noexcept { return core_->place; }
void AsioExecutor::post(Runnable& runnable) noexcept { core_->post(runnable); }
bool AsioExecutor::running_in_this_thread() const noexcept { return RuntimeThread::current() == this; }
TimePoint AsioExecutor::now() const noexcept { return std::chrono::steady_clock::now() - core_->start; }
void AsioExecutor::add_timer(Timer& timer, TimePoint when) noexcept { core_->add_timer(timer, when); }
bool AsioExecutor::cancel_timer(Timer& timer) noexcept { return core_->cancel_timer(timer); }

Executor::Drive AsioExecutor::drive() {
  using Context = asio::io_context::executor_type;
  using Pool = asio::thread_pool::executor_type;
  const asio::any_io_executor& on = core_->place;
  if (inside<Context>(on) || inside<Pool>(on) || inside<asio::strand<Context>>(on) || inside<asio::strand<Pool>>(on) ||
      inside<asio::strand<asio::any_io_executor>>(on))
    throw BlockingError("a blocking wait inside a handler of the executor that must run the awaited task");
  return Drive::own_threads;
}

}  // namespace millrace
