// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/write_queue.h>

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/append.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/wire_error.h>
#include <millrace/tensor/error.h>

namespace millrace {

struct WriteQueue::State : std::enable_shared_from_this<WriteQueue::State> {
  State(std::shared_ptr<MessageStream> to, std::size_t most, std::chrono::milliseconds limit)
      : stream(std::move(to)), max_bytes(most), stuck(limit), timer(stream->get_executor()) {}

  bool reached(bool flushed) const { return error || (flushed ? !writing && waiting.empty() : bytes < max_bytes); }

  void write_next() {
    if (writing || waiting.empty() || error) return;
    writing = true;
    const std::size_t size = cost(waiting.front());
    timer.expires_after(stuck);
    timer.async_wait([self = shared_from_this(), number = ++writes](error_code cancelled) {
      if (!cancelled && self->writing && self->writes == number) self->fail(ErrorCode::slow_reader);
    });
    Message message = std::move(waiting.front());
    waiting.pop_front();
    stream->async_write(std::move(message), [self = shared_from_this(), size](error_code failed) { self->written(failed, size); });
  }

  void written(error_code failed, std::size_t size) {
    writing = false;
    timer.cancel();
    if (failed) return fail(failed);
    if (error) return;
    bytes -= size;
    write_next();
    wake();
  }

  void fail(error_code cause) {
    if (!error) {
      error = cause;
      stream->abort();
    }
    waiting.clear();
    bytes = 0;
    timer.cancel();
    wake();
  }

  void wake() {
    if (!waiter || !reached(waiter_flushed)) return;
    finish(error);
  }
  void finish(error_code with) {
    asio::post(stream->get_executor(), asio::append(std::exchange(waiter, nullptr), with));
    work.reset();
  }

  // A small constant stands for what a message costs beside its bytes, so that empty ones are bounded too.
  static std::size_t cost(const Message& message) { return message.payload.size() + 64; }

  std::shared_ptr<MessageStream> stream;
  std::size_t max_bytes;
  std::chrono::milliseconds stuck;
  asio::steady_timer timer;
  std::deque<Message> waiting;
  std::size_t bytes = 0;  // of waiting and of what is being written
  std::uint64_t writes = 0;
  bool writing = false;
  error_code error;
  DoneHandler waiter;
  bool waiter_flushed = false;
  std::uint64_t waits = 0;
  std::optional<asio::executor_work_guard<asio::any_completion_executor>> work;  // of the waiter's executor
};

WriteQueue::WriteQueue(std::shared_ptr<MessageStream> stream, std::size_t max_bytes, std::chrono::milliseconds stuck)
    : state_(std::make_shared<State>(std::move(stream), max_bytes, stuck)) {}

WriteQueue::~WriteQueue() {
  if (!state_->reached(true)) state_->fail(asio::error::operation_aborted);
}

bool WriteQueue::has_room() const noexcept { return !state_->error && state_->bytes < state_->max_bytes; }
std::size_t WriteQueue::bytes() const noexcept { return state_->bytes; }
error_code WriteQueue::error() const noexcept { return state_->error; }

void WriteQueue::push(Message message) {
  if (state_->error) return;
  if (!has_room())
    throw OverflowError("write queue: expected fewer than " + std::to_string(state_->max_bytes) + " bytes waiting, found " +
                        std::to_string(state_->bytes));
  state_->bytes += State::cost(message);
  state_->waiting.push_back(std::move(message));
  state_->write_next();
}

void WriteQueue::wait(bool flushed, DoneHandler handler) {
  State& state = *state_;
  if (state.waiter) throw ArgumentError("write queue: expected one waiter at a time");
  state.work.emplace(asio::get_associated_executor(handler, asio::any_completion_executor(state.stream->get_executor())));
  state.waiter.swap(handler);  // not assigned: that recurses without end in Asio 1.26
  state.waiter_flushed = flushed;
  ++state.waits;
  // The slot keeps its handler after the wait, so a late signal must not reach the next waiter: waits are numbered.
  auto slot = asio::get_associated_cancellation_slot(state.waiter);
  if (slot.is_connected())
    slot.assign([weak = std::weak_ptr<State>(state_), wait = state.waits](asio::cancellation_type type) {
      const auto shared = weak.lock();
      if (shared && shared->waiter && shared->waits == wait && type != asio::cancellation_type::none)
        shared->finish(asio::error::operation_aborted);
    });
  state.wake();
}

}  // namespace millrace
