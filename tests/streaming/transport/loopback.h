// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/connection.h>
#include <millrace/streaming/transport/listener.h>

namespace millrace::testing {

/// A server's socket and what connects to it, on one thread that only moves when it is told to.
class Loopback {
 public:
  explicit Loopback(AcceptOptions taken = AcceptOptions()) : options(std::move(taken)), listener(context.get_executor(), "127.0.0.1", 0) {}

  /// Runs until `done()`, for at most a minute: 40,000 bytes that come one by one take seconds under ThreadSanitizer.
  template <class Done>
  void run_until(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!done()) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      context.restart();
      context.run_one_for(std::chrono::milliseconds(50));
    }
  }

  /// Starts to accept one connection, into `server` and `server_error`.
  void accept() {
    server.reset();
    server_error.reset();
    listener.async_accept([this](error_code error, asio::ip::tcp::socket socket) {
      if (error) {
        server_error = error;
        return;
      }
      async_accept_stream(std::move(socket), options, [this](error_code failed, std::unique_ptr<MessageStream> stream) {
        server_error = failed;
        server = std::move(stream);
      });
    });
  }

  /// Both ends of one connection, into `server` and `client`.
  void connect(StreamUrl::Scheme scheme, Limits limits = Limits()) {
    accept();
    StreamUrl url;
    url.scheme = scheme;
    url.host = "127.0.0.1";
    url.port = listener.port();
    std::optional<error_code> client_error;
    async_connect_stream(context.get_executor(), url, limits, [&](error_code error, std::unique_ptr<MessageStream> stream) {
      client_error = error;
      client = std::move(stream);
      // Plain TCP shows itself with its first bytes.
      if (scheme == StreamUrl::Scheme::tcp) client->async_write(text_message("hello"), [](error_code) {});
    });
    run_until([&] { return client_error && server_error; });
    REQUIRE_FALSE(*client_error);
    REQUIRE_FALSE(*server_error);
    if (scheme == StreamUrl::Scheme::tcp) REQUIRE(read(*server).second.payload == "hello");
  }

  std::pair<error_code, Message> read(MessageStream& stream) {
    std::optional<std::pair<error_code, Message>> result;
    stream.async_read([&](error_code error, Message message) { result.emplace(error, std::move(message)); });
    run_until([&] { return result.has_value(); });
    return *std::move(result);
  }
  error_code write(MessageStream& stream, Message message) {
    std::optional<error_code> result;
    stream.async_write(std::move(message), [&](error_code error) { result = error; });
    run_until([&] { return result.has_value(); });
    return *result;
  }
  error_code close(MessageStream& stream, std::uint16_t code) {
    std::optional<error_code> result;
    stream.async_close(code, [&](error_code error) { result = error; });
    run_until([&] { return result.has_value(); });
    return *result;
  }

  /// A socket without any protocol, connected to the listener, while the server accepts.
  asio::ip::tcp::socket raw() {
    accept();
    asio::ip::tcp::socket socket(context);
    socket.connect({asio::ip::make_address("127.0.0.1"), listener.port()});
    return socket;
  }
  /// All that the server sends to `socket` until it ends. Then the client ends as well: a server that refused waits for that. A stream that the server
  /// accepted goes at once.
  std::string read_to_end(asio::ip::tcp::socket& socket) {
    std::string text;
    bool ended = false;
    asio::async_read(socket, asio::dynamic_buffer(text), [&](error_code, std::size_t) {
      ended = true;
      socket.close();
    });
    run_until([&] {
      if (server_error) server.reset();
      return ended;
    });
    return text;
  }

  asio::io_context context{1};
  AcceptOptions options;
  Listener listener;
  std::unique_ptr<MessageStream> server, client;
  std::optional<error_code> server_error;
};

inline constexpr StreamUrl::Scheme both_schemes[] = {StreamUrl::Scheme::tcp, StreamUrl::Scheme::ws};

}  // namespace millrace::testing
