// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include <millrace/streaming/transport/message_stream.h>

namespace millrace {

/// Replies on their way out: written in order, one at a time, with a bound and a deadline.
///
/// A message that the peer does not take within `stuck` aborts the stream: everything that waits completes with ErrorCode::slow_reader. The
/// first error is kept; after it `push` drops what it is given. The stream must outlive the queue's last completion: destroy the queue
/// first, which aborts the stream. Not thread-safe: use it on the stream's executor.
class WriteQueue {
 public:
  using DoneHandler = boost::asio::any_completion_handler<void(error_code)>;

  WriteQueue(std::shared_ptr<MessageStream> stream, std::size_t max_bytes, std::chrono::milliseconds stuck);
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;
  ~WriteQueue();

  /// Whether fewer than `max_bytes` wait, and no error came. Ask before making the next reply.
  bool has_room() const noexcept;
  std::size_t bytes() const noexcept;
  error_code error() const noexcept;

  /// Queues a message, and starts writing. One message more is taken than there is room for, so a large one passes; OverflowError when
  /// `has_room` was false for another reason than an error.
  void push(Message message);

  /// Completes with (error_code) once there is room, or the first error came. One at a time. Cancellation (terminal, partial, total)
  /// completes it with operation_aborted.
  template <class Token>
  auto async_room(Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [](auto handler, WriteQueue* self) { self->wait(false, std::move(handler)); }, token, this);
  }
  /// Completes likewise once nothing waits any more: everything was written.
  template <class Token>
  auto async_flushed(Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [](auto handler, WriteQueue* self) { self->wait(true, std::move(handler)); }, token, this);
  }

 private:
  struct State;
  void wait(bool flushed, DoneHandler handler);
  std::shared_ptr<State> state_;
};

}  // namespace millrace
