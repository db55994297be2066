// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <millrace/streaming/protocol/limits.h>
#include <millrace/streaming/transport/byte_stream.h>
#include <millrace/streaming/transport/http_page.h>
#include <millrace/streaming/transport/message_stream.h>
#include <millrace/streaming/transport/tls.h>
#include <millrace/streaming/transport/token_set.h>

namespace millrace {

/// Where a server is: tcp://HOST:PORT or ws://HOST:PORT[/stream]; tcps and wss are the same over TLS.
struct StreamUrl {
  enum class Scheme : std::uint8_t { tcp, ws, tcps, wss };
  Scheme scheme = Scheme::tcp;
  std::string host;  ///< a name or an address; an IPv6 address stands in brackets in the text, without them here
  std::uint16_t port = 0;
  std::string path = "/stream";

  StreamUrl() = default;
  bool is_websocket() const noexcept { return scheme == Scheme::ws || scheme == Scheme::wss; }
  bool is_encrypted() const noexcept { return scheme == Scheme::tcps || scheme == Scheme::wss; }
};
/// ParseError says what was expected.
StreamUrl parse_stream_url(std::string_view text);

struct AcceptOptions {
  Limits limits;
  std::vector<std::string> origins;                          ///< of browsers that may connect, besides those of the server's own page
  std::shared_ptr<const TlsServer> tls{};                    ///< none: bytes are not encrypted
  std::shared_ptr<const TokenSet> tokens{};                  ///< none: no token is asked for
  std::shared_ptr<const HttpPages> pages{};                  ///< for a browser that asks for no WebSocket; none: 404
  std::shared_ptr<const std::vector<std::string>> routes{};  ///< /NAME of each is a WebSocket, too; see MessageStream::route

  AcceptOptions() = default;
};

struct ConnectOptions {
  Limits limits;
  std::string token{};                     ///< that the server is shown; empty: none
  std::shared_ptr<const TlsClient> tls{};  ///< for tcps and wss; none: trusts the system's authorities
  bool token_in_clear = false;             ///< whether the token may go to another machine without TLS

  ConnectOptions() = default;
  ConnectOptions(const Limits& within) : limits(within) {}  // NOLINT: limits alone are options
};

void accept_stream(boost::asio::ip::tcp::socket socket, AcceptOptions options, MessageStreamHandler handler);
void accept_stream(ByteStream bytes, AcceptOptions options, MessageStreamHandler handler);
void connect_stream(const boost::asio::any_io_executor& executor, StreamUrl url, ConnectOptions options, MessageStreamHandler handler);

/// Server side: agrees on TLS where `tls` says so, tells plain TCP from WebSocket by the first four bytes, asks for a token where there are some,
/// and completes with (error_code, unique_ptr<MessageStream>) once the peer may send its `start`. On failure the socket is closed. The error is
/// ErrorCode::idle after `limits.handshake`; ErrorCode::refused for a token that is missing or unknown (the peer is told), and for a request
/// that WebSocket refuses; TLS's own code for a peer that does not speak it. A page that was asked for is given, and the operation completes with
/// eof. Associated executor, allocator and cancellation (terminal) are honoured.
template <class Token>
auto async_accept_stream(boost::asio::ip::tcp::socket socket, AcceptOptions options, Token&& token) {
  return boost::asio::async_initiate<Token, void(error_code, std::unique_ptr<MessageStream>)>(
      [](auto handler, boost::asio::ip::tcp::socket moved, AcceptOptions taken) {
        accept_stream(std::move(moved), std::move(taken), std::move(handler));
      },
      token, std::move(socket), std::move(options));
}

/// Accepts over another carrier than a socket, such as a pipe or a simulated network. `options.tls` is not looked at.
template <class Token>
auto async_accept_stream(ByteStream bytes, AcceptOptions options, Token&& token) {
  return boost::asio::async_initiate<Token, void(error_code, std::unique_ptr<MessageStream>)>(
      [](auto handler, ByteStream moved, AcceptOptions taken) { accept_stream(std::move(moved), std::move(taken), std::move(handler)); },
      token, std::move(bytes), std::move(options));
}

/// Client side: resolves, connects (agrees on TLS, asks for a WebSocket, shows the token), and completes likewise, within `limits.handshake`. A
/// certificate that is not trusted is an error that says why. A token of the wrong form, and one that would leave this machine
/// without TLS, is an ArgumentError.
template <class Token>
auto async_connect_stream(const boost::asio::any_io_executor& executor, StreamUrl url, ConnectOptions options, Token&& token) {
  return boost::asio::async_initiate<Token, void(error_code, std::unique_ptr<MessageStream>)>(
      [](auto handler, boost::asio::any_io_executor on, StreamUrl to, ConnectOptions how) {
        connect_stream(on, std::move(to), std::move(how), std::move(handler));
      },
      token, executor, std::move(url), std::move(options));
}

}  // namespace millrace
