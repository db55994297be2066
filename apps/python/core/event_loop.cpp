// SPDX-License-Identifier: Apache-2.0
#include "event_loop.h"

#include <cerrno>
#include <cstdint>
#include <iterator>

#include <sys/eventfd.h>
#include <unistd.h>

#include <fmt/format.h>

#include <millrace/tensor/error.h>

#include "engine.h"
#include "gil.h"

namespace millrace::python {
namespace {

std::atomic<std::size_t> live{0};

}  // namespace

LoopExecutor::LoopExecutor() : clock_(Engine::current().executor()), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_ < 0) throw IoError(fmt::format("asyncio: no event descriptor, error {}", errno));
}
LoopExecutor::~LoopExecutor() { ::close(event_); }

std::size_t LoopExecutor::live_operations() noexcept { return live.load(); }

void LoopExecutor::post(Runnable& runnable) noexcept {
  const std::lock_guard lock(mutex_);
  queue_.push(runnable);
  if (driving_) return;  // seen before `run_posted` returns
  posted_.notify_all();
  signal();
}

void LoopExecutor::post(std::shared_ptr<LoopNews> news) noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  news_.push_back(std::move(news));
  if (!driving_) signal();
}

/// Makes the descriptor readable. With the mutex held.
void LoopExecutor::signal() noexcept {
  if (std::exchange(signalled_, true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_, &one, sizeof one);
}

TimePoint LoopExecutor::now() const noexcept { return clock_.now(); }
void LoopExecutor::add_timer(Timer& timer, TimePoint when) noexcept { clock_.add_timer(timer, when); }
bool LoopExecutor::cancel_timer(Timer& timer) noexcept { return clock_.cancel_timer(timer); }

/// Runs what is in the queue now. False when there was nothing.
bool LoopExecutor::run_queue() {
  RunnableQueue ready;
  {
    const std::lock_guard lock(mutex_);
    ready = queue_.take();
  }
  if (ready.empty()) return false;
  while (Runnable* next = ready.pop()) next->execute();
  return true;
}

void LoopExecutor::run_posted() {
  constexpr int most_passes = 8;  // other callbacks of the event loop want their turn
  const GilKept kept;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(driving_, true)) return;
    if (std::exchange(signalled_, false)) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t taken = read(event_, &count, sizeof count);
    }
  }
  {
    const RuntimeThread here(*this);
    for (int pass = 0; pass < most_passes && run_queue();) ++pass;
  }
  const std::lock_guard lock(mutex_);
  driving_ = false;
  if (!queue_.empty() || !news_.empty()) signal();
}

void LoopExecutor::on_readable() {
  News due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(news_);
  }
  run_posted();
  for (auto next = due.begin(); next != due.end(); ++next) {
    try {
      (*next)->deliver();
    } catch (...) {  // the others have their turn when the event loop goes on
      const std::lock_guard lock(mutex_);
      news_.insert(news_.begin(), std::make_move_iterator(next), std::make_move_iterator(due.end()));
      signal();
      throw;
    }
  }
}

void LoopExecutor::close() {
  const std::set<Operation*> all = live_;
  for (const Operation* operation : all) operation->cancel();
  while (!live_.empty()) {
    {
      const GilReleased released;
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return !queue_.empty(); });
    }
    run_posted();
  }
  News dropped;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  dropped.swap(news_);
}

Operation::Operation(std::shared_ptr<LoopExecutor> loop, std::string name) : loop_(std::move(loop)), run_(new Run(std::move(name))) {}
Operation::~Operation() = default;

void Operation::begin(bool counted) {
  loop_->live_.insert(this);
  counted_ = counted;
  if (counted) ++live;
}

void Operation::end() noexcept {
  loop_->live_.erase(this);
  if (counted_) --live;
  ended_ = true;
  const nb::object wake = std::move(wake_);
  if (!wake.is_valid()) return;
  try {
    wake();
  } catch (nb::python_error& error) {
    // A loop that was closed with the work under way is a RuntimeError: nobody waits there any more.
    if (!error.matches(PyExc_RuntimeError)) error.discard_as_unraisable("millrace: the end of an operation");
  }
}

void Operation::wake_by(nb::object wake) {
  if (ended_)
    wake();
  else
    wake_ = std::move(wake);
}

nb::object Operation::result() {
  if (!ended_) throw NotReadyError("asyncio: the operation has not ended yet");
  return take();
}

}  // namespace millrace::python
