// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <millrace/streaming/protocol/limits.h>
#include <millrace/streaming/transport/message_stream.h>

namespace millrace {

/// Where a server is: tcp://HOST:PORT or ws://HOST:PORT[/stream].
struct StreamUrl {
  enum class Scheme : std::uint8_t { tcp, ws };
  Scheme scheme = Scheme::tcp;
  std::string host;  ///< a name or an address; an IPv6 address stands in brackets in the text, without them here
  std::uint16_t port = 0;
  std::string path = "/stream";

  StreamUrl() = default;
};
/// ParseError says what was expected.
StreamUrl parse_stream_url(std::string_view text);

struct AcceptOptions {
  Limits limits;
  std::vector<std::string> origins;  ///< of browsers that may connect; none by default

  AcceptOptions() = default;
};

void accept_stream(boost::asio::ip::tcp::socket socket, AcceptOptions options, MessageStreamHandler handler);
void connect_stream(const boost::asio::any_io_executor& executor, StreamUrl url, Limits limits, MessageStreamHandler handler);

/// Server side: tells plain TCP from WebSocket by the first four bytes, and completes with (error_code, unique_ptr<MessageStream>) once the
/// peer may send its `start`. Closes the socket and completes with ErrorCode::idle after `limits.handshake`, with ErrorCode::refused for a
/// request that WebSocket refuses. Associated executor, allocator and cancellation (terminal) are honoured.
template <class Token>
auto async_accept_stream(boost::asio::ip::tcp::socket socket, AcceptOptions options, Token&& token) {
  return boost::asio::async_initiate<Token, void(error_code, std::unique_ptr<MessageStream>)>(
      [](auto handler, boost::asio::ip::tcp::socket moved, AcceptOptions taken) {
        accept_stream(std::move(moved), std::move(taken), std::move(handler));
      },
      token, std::move(socket), std::move(options));
}

/// Client side: resolves, connects (and asks for a WebSocket), and completes likewise, within `limits.handshake`.
template <class Token>
auto async_connect_stream(const boost::asio::any_io_executor& executor, StreamUrl url, Limits limits, Token&& token) {
  return boost::asio::async_initiate<Token, void(error_code, std::unique_ptr<MessageStream>)>(
      [](auto handler, boost::asio::any_io_executor on, StreamUrl to, Limits within) {
        connect_stream(on, std::move(to), within, std::move(handler));
      },
      token, executor, std::move(url), limits);
}

}  // namespace millrace
