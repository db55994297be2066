// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <millrace/streaming/protocol/message.h>
#include <millrace/streaming/transport/asio.h>

namespace millrace {

/// Whole messages both ways, over plain TCP or WebSocket alike.
///
/// Initiating functions take any completion token; handlers run through their associated executor (else the stream's); associated allocator
/// and cancellation slot are honoured (terminal cancellation only: the stream is of no use after it, call `abort`). At most one
/// `async_read`, and one of `async_write` and `async_close`, at a time; a read and a write may overlap. Destroying the stream aborts it:
/// pending operations complete with an error. Not thread-safe: use it on its executor.
class MessageStream {
 public:
  using executor_type = boost::asio::any_io_executor;
  using ReadHandler = boost::asio::any_completion_handler<void(error_code, Message)>;
  using DoneHandler = boost::asio::any_completion_handler<void(error_code)>;

  virtual ~MessageStream() = default;
  virtual executor_type get_executor() = 0;

  /// Completes with (error_code, Message). eof: the peer ended between messages. A code of `wire_category` (wire_error.h): the peer broke
  /// the protocol, and over WebSocket was already told so with its close code; nothing more can be read.
  template <class Token>
  auto async_read(Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, Message)>(
        [](auto handler, MessageStream* self) { self->read(std::move(handler)); }, token, this);
  }
  /// Completes with (error_code) when the message was handed to the network.
  template <class Token>
  auto async_write(Message message, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [](auto handler, MessageStream* self, Message moved) { self->write(std::move(moved), std::move(handler)); }, token, this,
        std::move(message));
  }
  /// Writes several messages, at least one, in order: over TCP as one piece.
  template <class Token>
  auto async_write_all(std::vector<Message> messages, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [](auto handler, MessageStream* self, std::vector<Message> moved) { self->write_all(std::move(moved), std::move(handler)); }, token,
        this, std::move(messages));
  }
  /// Ends the stream so that the peer can read what was written before: a WebSocket close with `code`, over TCP (which has no codes) an
  /// orderly end. Discards what arrives. Bounded in time (WebSocket: the handshake limit; TCP: one second). A pending read completes with
  /// an error.
  template <class Token>
  auto async_close(std::uint16_t code, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [](auto handler, MessageStream* self, std::uint16_t value) { self->close(value, std::move(handler)); }, token, this, code);
  }
  /// Bounds what is read, from the next message on: bytes of a message, and of one that is text where that is less. Longer: ErrorCode::too_big.
  virtual void limit(std::size_t bytes, std::size_t text_bytes) noexcept = 0;
  /// When the peer last sent a WebSocket ping or pong, which no message is; the epoch while it has not, and over TCP.
  virtual std::chrono::steady_clock::time_point last_ping() const noexcept { return {}; }
  /// The route that a WebSocket asked for beside `websocket_route`, without its slash; empty for that one, and over TCP.
  virtual std::string_view route() const noexcept { return {}; }
  /// Closes at once; pending operations complete with an error.
  virtual void abort() noexcept = 0;
  /// The close code that the peer sent; 0 while there is none, and over TCP.
  virtual std::uint16_t peer_close_code() const noexcept = 0;

 protected:
  virtual void read(ReadHandler handler) = 0;
  virtual void write(Message message, DoneHandler handler) = 0;
  virtual void write_all(std::vector<Message> messages, DoneHandler handler) = 0;
  virtual void close(std::uint16_t code, DoneHandler handler) = 0;
};

using MessageStreamHandler = boost::asio::any_completion_handler<void(error_code, std::unique_ptr<MessageStream>)>;

}  // namespace millrace
