// SPDX-License-Identifier: Apache-2.0
// Every initiating function of the transport, with every kind of completion token.
#include <array>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/byte_stream.h>
#include <streaming/transport/loopback.h>
#include <support/completion_tokens.h>

using namespace millrace;
using namespace millrace::testing;
using asio::ip::tcp;

namespace {

StreamUrl url_of(const Loopback& loop, StreamUrl::Scheme scheme) {
  StreamUrl url;
  url.scheme = scheme;
  url.host = "127.0.0.1";
  url.port = loop.listener.port();
  return url;
}

/// Two ends of a TCP connection without any protocol.
std::pair<tcp::socket, tcp::socket> connected(asio::io_context& context) {
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0));
  tcp::socket client(context);
  client.connect(acceptor.local_endpoint());
  return {std::move(client), acceptor.accept()};
}

const auto aborted = [](error_code error, auto&&...) { CHECK(error == asio::error::operation_aborted); };

}  // namespace

TEST_CASE("accepting takes every completion token, and can be cancelled") {
  Loopback loop;
  std::vector<tcp::socket> clients;
  check_completion_tokens(loop.context, [&]<class Token>(Token&& token) {
    clients.emplace_back(loop.context).connect({asio::ip::make_address("127.0.0.1"), loop.listener.port()});
    return loop.listener.async_accept(std::forward<Token>(token));
  });
  check_cancellation(loop.context, [&](auto handler) { loop.listener.async_accept(std::move(handler)); }, aborted);
}

TEST_CASE("both sides of connecting take every completion token, and can be cancelled") {
  Loopback loop;
  for (const auto scheme : both_schemes) {
    INFO("scheme ", static_cast<int>(scheme));
    check_completion_tokens(loop.context, [&]<class Token>(Token&& token) {
      loop.context.poll();  // the one before has been taken
      loop.accept();
      return async_connect_stream(loop.context.get_executor(), url_of(loop, scheme), Limits(), std::forward<Token>(token));
    });
  }
  check_cancellation(  // nobody answers: the listener's backlog takes the connection
      loop.context,
      [&](auto handler) {
        async_connect_stream(loop.context.get_executor(), url_of(loop, StreamUrl::Scheme::ws), Limits(), std::move(handler));
      },
      [](error_code error, auto&&...) { CHECK(error); });
  std::vector<tcp::socket> clients;
  const auto newcomer = [&] {
    auto [client, server] = connected(loop.context);
    clients.push_back(std::move(client));
    return std::move(server);
  };
  check_completion_tokens(loop.context, [&]<class Token>(Token&& token) {
    tcp::socket server = newcomer();
    asio::write(clients.back(), asio::buffer(std::string_view("\0\0\0\2\1{}", 7)));
    return async_accept_stream(std::move(server), AcceptOptions(), std::forward<Token>(token));
  });
  check_cancellation(
      loop.context, [&](auto handler) { async_accept_stream(newcomer(), AcceptOptions(), std::move(handler)); },
      [](error_code error, auto&&...) { CHECK(error); });
}

TEST_CASE("reading, writing and closing of messages take every completion token") {
  for (const auto scheme : both_schemes) {
    INFO("scheme ", static_cast<int>(scheme));
    Loopback loop;
    loop.connect(scheme);
    check_completion_tokens(
        loop.context, [&]<class Token>(Token&& token) { return loop.client->async_write(text_message("a"), std::forward<Token>(token)); });
    check_completion_tokens(loop.context, [&]<class Token>(Token&& token) { return loop.server->async_read(std::forward<Token>(token)); });
    std::vector<std::unique_ptr<MessageStream>> clients, servers;
    for (int i = 0; i < 5; ++i) {
      loop.connect(scheme);
      clients.push_back(std::move(loop.client));
      servers.push_back(std::move(loop.server));
      servers.back()->async_read([](error_code, const Message&) {});  // which answers a close
    }
    check_completion_tokens(loop.context, [&, next = std::size_t{0}]<class Token>(Token&& token) mutable {
      return clients.at(next++)->async_close(1000, std::forward<Token>(token));
    });
    loop.connect(scheme);
    check_cancellation(
        loop.context, [&](auto handler) { loop.server->async_read(std::move(handler)); },
        [](error_code error, auto&&...) { CHECK(error); });
  }
}

TEST_CASE("streams of bytes take every completion token, and a read can be cancelled") {
  asio::io_context context(1);
  auto [client, server] = connected(context);
  ByteStream stream = make_byte_stream(std::move(server));
  check_completion_tokens(
      context, [&]<class Token>(Token&& token) { return stream.async_write_some(asio::buffer("abc", 3), std::forward<Token>(token)); });
  std::array<char, 8> bytes{};
  check_completion_tokens(context, [&]<class Token>(Token&& token) {
    asio::write(client, asio::buffer("abc", 3));
    return stream.async_read_some(asio::buffer(bytes), std::forward<Token>(token));
  });
  while (client.available() > 0) client.read_some(asio::buffer(bytes));
  check_cancellation(context, [&](auto handler) { stream.async_read_some(asio::buffer(bytes), std::move(handler)); }, aborted);
  check_completion_tokens(context, [&]<class Token>(Token&& token) {
    auto [other, closing] = connected(context);
    stream = make_byte_stream(std::move(closing));
    client = std::move(other);
    client.shutdown(tcp::socket::shutdown_send);
    return stream.async_shut_down(std::forward<Token>(token));
  });
}
