// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include <boost/asio/compose.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/byte_stream.h>

namespace millrace {

/// Reads and drops until the peer ends, or `Shared::timer` closed `Shared::socket()`; then closes it.
template <class Shared>
struct SocketDrain {
  std::shared_ptr<Shared> shared;
  std::shared_ptr<std::array<char, 4096>> scratch = std::make_shared<std::array<char, 4096>>();

  template <class Self>
  void operator()(Self& self, error_code error = {}, std::size_t = 0) {
    if (!error) {
      shared->socket().async_read_some(asio::buffer(*scratch), std::move(self));
      return;
    }
    shared->timer.cancel();
    error_code ignored;
    shared->socket().close(ignored);
    // The peer's end, or the timer: either way the stream is closed, as was asked.
    self.complete(error_code());
  }
};

/// Closes the socket a second from now, if it still lives.
template <class Shared>
void close_in_a_second(const std::shared_ptr<Shared>& shared) {
  shared->timer.expires_after(std::chrono::seconds(1));
  shared->timer.async_wait([weak = std::weak_ptr<Shared>(shared)](error_code error) {
    const auto still = weak.lock();
    error_code closing;
    if (!error && still) still->socket().close(closing);
  });
}

/// Ends sending and drains: Carrier::shut_down of a socket whose timer runs.
template <class Shared>
void drain_socket(std::shared_ptr<Shared> shared, ByteStream::DoneHandler& handler) {
  error_code ignored;
  auto& socket = shared->socket();
  socket.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  SocketDrain<Shared> drain;
  drain.shared = std::move(shared);
  asio::async_compose<ByteStream::DoneHandler, void(error_code)>(std::move(drain), handler, socket);
}

}  // namespace millrace
