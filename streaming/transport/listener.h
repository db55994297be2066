// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <millrace/streaming/transport/asio.h>

namespace millrace {

/// A listening TCP socket. When the process runs out of descriptors, and at 90 % of their limit, it asks for room (`make_room_with`); where there is none it takes the
/// newcomer with a spare descriptor, waits 100 ms, tells it why and goes on. Any other error of accepting is waited out as long: only `close` ends it. Not
/// thread-safe: use it on its executor.
class Listener {
 public:
  using SocketHandler = boost::asio::any_completion_handler<void(error_code, boost::asio::ip::tcp::socket)>;

  /// Hosts that may connect: this machine alone, or others too.
  enum class Reach : std::uint8_t { loopback, any };

  /// `port` 0 takes a free one. ArgumentError for text that is no IP address, and for one that others can reach where `reach` is loopback; IoError
  /// names address, port and cause.
  Listener(const boost::asio::any_io_executor& executor, const std::string& address, std::uint16_t port, Reach reach = Reach::loopback);
  Listener(Listener&&) noexcept;
  ~Listener();

  std::string address() const;
  std::uint16_t port() const;

  /// Completes with (error_code, socket); the socket has the listener's executor. One at a time; operation_aborted after `close`.
  /// Associated executor, allocator and cancellation (terminal) are honoured.
  template <class Token>
  auto async_accept(Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, boost::asio::ip::tcp::socket)>(
        [](auto handler, Listener* self) { self->accept(std::move(handler)); }, token, this);
  }
  /// Accepts until `close`, in place of `async_accept`: `take` gets each newcomer, and up to `at_once()` of those that are there already one behind the
  /// other. An exception of `take` is the loss of that newcomer. Where no memory is left to wait for the next one, nobody waits until `wake`.
  void accept_all(std::function<void(boost::asio::ip::tcp::socket)> take, std::function<std::size_t()> at_once = nullptr);
  /// A connection has gone, whose memory is free: `accept_all` waits again where it could not.
  void wake();
  /// The answer to a newcomer for which there is no descriptor: one that spoke as HTTP, and any other. Nothing by default.
  void refuse_with(std::string over_http, std::string otherwise);
  /// Called when no connection could be accepted, with why; not again before one could.
  void on_scarce(std::function<void(const std::string& why)> call);
  /// Called for each newcomer that is refused for want of a descriptor.
  void on_refused(std::function<void()> call);
  /// Called when descriptors run short; it closes a descriptor, or returns false.
  void make_room_with(std::function<bool()> call);
  /// Newcomers get the last tenth of the descriptors as well, which listeners without this call leave over.
  void take_last_descriptors() noexcept;
  /// Stops listening. Idempotent.
  void close() noexcept;

 private:
  struct State;
  void accept(SocketHandler handler);
  std::shared_ptr<State> state_;  // shared with the pending accept
};

}  // namespace millrace
