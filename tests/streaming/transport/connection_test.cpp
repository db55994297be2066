// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/connection.h>

#include <boost/asio/bind_cancellation_slot.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/frame.h>
#include <millrace/streaming/transport/wire_error.h>
#include <streaming/transport/loopback.h>
#include <support/random.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

std::string payload(Random& random) {
  std::string text(static_cast<std::size_t>(random.between(0, 9) == 0 ? random.between(0, 200000) : random.between(0, 300)), ' ');
  for (char& c : text) c = static_cast<char>('a' + random.between(0, 25));
  return text;
}

std::string request(const std::string& first, const std::string& fields) {
  return first + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
}

const std::string upgrade =
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

std::string answer(Loopback& loop, const std::string& text) {
  auto socket = loop.raw();
  asio::write(socket, asio::buffer(text));
  const std::string all = loop.read_to_end(socket);
  socket.close();
  loop.run_until([&] { return loop.server_error.has_value(); });
  return all.substr(0, all.find("\r\n"));
}

}  // namespace

TEST_CASE("messages cross both ways over TCP and WebSocket alike") {
  for (const auto scheme : both_schemes)
    for (const auto seed : seeds(3)) {
      INFO("seed ", seed, " scheme ", static_cast<int>(scheme));
      Random random(seed);
      Loopback loop;
      loop.connect(scheme);
      for (int iteration = 0; iteration < 30; ++iteration) {
        auto& from = random.coin() ? loop.server : loop.client;
        auto& to = from == loop.server ? loop.client : loop.server;
        const Message sent = random.coin() ? text_message(payload(random)) : binary_message(payload(random));
        std::optional<error_code> written;
        from->async_write(sent, [&](error_code error) { written = error; });
        const auto [error, received] = loop.read(*to);
        REQUIRE_FALSE(error);
        REQUIRE(received == sent);
        loop.run_until([&] { return written.has_value(); });
        REQUIRE_FALSE(*written);
      }
    }
}

TEST_CASE("a close lets the peer read what was sent before, then shows as an end") {
  for (const auto scheme : both_schemes) {
    INFO("scheme ", static_cast<int>(scheme));
    Loopback loop;
    loop.connect(scheme);
    loop.write(*loop.client, binary_message("never read"));
    loop.write(*loop.server, text_message("last words"));
    std::optional<error_code> closed;
    loop.server->async_close(1013, [&](error_code error) { closed = error; });
    CHECK(loop.read(*loop.client).second.payload == "last words");
    CHECK(loop.read(*loop.client).first == asio::error::eof);
    CHECK(loop.client->peer_close_code() == (scheme == StreamUrl::Scheme::ws ? 1013 : 0));
    loop.client.reset();
    loop.run_until([&] { return closed.has_value(); });
    CHECK_FALSE(*closed);
  }
}

TEST_CASE("a close is bounded when the peer does not answer") {
  for (const auto scheme : both_schemes) {
    Loopback loop;
    loop.options.limits.handshake = std::chrono::milliseconds(1000);
    loop.connect(scheme);
    CHECK_FALSE(loop.close(*loop.server, 1000));
  }
}

TEST_CASE("a message above the limit is refused with its code") {
  for (const auto scheme : both_schemes) {
    INFO("scheme ", static_cast<int>(scheme));
    Loopback loop;
    loop.options.limits.message = 1000;
    loop.connect(scheme);
    loop.write(*loop.client, binary_message(std::string(1000, 'x')));
    CHECK(loop.read(*loop.server).second.payload.size() == 1000);
    loop.write(*loop.client, binary_message(std::string(1001, 'x')));
    std::optional<error_code> read;
    loop.server->async_read([&](error_code error, Message) { read = error; });
    std::optional<error_code> told;
    loop.client->async_read([&](error_code error, Message) { told = error; });
    loop.run_until([&] { return read.has_value(); });
    CHECK(wire_error(*read) == ErrorCode::too_big);
    if (scheme == StreamUrl::Scheme::tcp) continue;
    loop.run_until([&] { return told.has_value(); });
    CHECK(loop.client->peer_close_code() == 1009);
  }
}

TEST_CASE("WebSocket text that is not UTF-8 is refused as bad text") {
  Loopback loop;
  loop.connect(StreamUrl::Scheme::ws);
  loop.write(*loop.client, text_message("\xff\xfe"));
  std::optional<error_code> told;
  loop.client->async_read([&](error_code error, Message) { told = error; });
  CHECK(wire_error(loop.read(*loop.server).first) == ErrorCode::bad_text);
  loop.run_until([&] { return told.has_value(); });
  CHECK(loop.client->peer_close_code() == 1007);
}

TEST_CASE("a peer that vanishes shows as an end between frames and as a reset inside one") {
  for (const bool inside : {false, true}) {
    Loopback loop;
    auto socket = loop.raw();
    const std::string frame = encode_frame(text_message("hello"));
    asio::write(socket, asio::buffer(inside ? frame + "\x05" : frame));
    loop.run_until([&] { return loop.server != nullptr; });
    CHECK(loop.read(*loop.server).second.payload == "hello");
    socket.close();
    CHECK(loop.read(*loop.server).first == (inside ? error_code(asio::error::connection_reset) : error_code(asio::error::eof)));
  }
}

TEST_CASE("a bad frame is refused, and nothing can be read after it") {
  Loopback loop;
  auto socket = loop.raw();
  asio::write(socket, asio::buffer(std::string("\x01\0\0\0Xa", 6)));
  loop.run_until([&] { return loop.server != nullptr; });
  CHECK(wire_error(loop.read(*loop.server).first) == ErrorCode::bad_message);
  CHECK(wire_error(loop.read(*loop.server).first) == ErrorCode::bad_message);
}

TEST_CASE("frames that arrive in one packet are read one by one") {
  Loopback loop;
  auto socket = loop.raw();
  std::string wire;
  for (int k = 0; k < 5; ++k) wire += encode_frame(text_message(std::to_string(k)));
  asio::write(socket, asio::buffer(wire));
  loop.run_until([&] { return loop.server != nullptr; });
  for (int k = 0; k < 5; ++k) CHECK(loop.read(*loop.server).second.payload == std::to_string(k));
}

TEST_CASE("HTTP that is not the one WebSocket route gets its status and is refused") {
  Loopback loop;
  loop.options.origins = {"http://good.example"};
  const auto refused = [&](const std::string& text) {
    const std::string status = answer(loop, text);
    CHECK(wire_error(*loop.server_error) == ErrorCode::refused);
    CHECK_FALSE(loop.server);
    return status;
  };
  CHECK(refused(request("POST /stream", upgrade)).starts_with("HTTP/1.1 405"));
  CHECK(refused(request("GET /", upgrade)).starts_with("HTTP/1.1 404"));
  CHECK(refused(request("GET /stream/../admin", upgrade)).starts_with("HTTP/1.1 404"));
  CHECK(refused(request("GET /stream", "")).starts_with("HTTP/1.1 426"));
  CHECK(refused(request("GET /stream", upgrade + "Origin: http://evil.example\r\n")).starts_with("HTTP/1.1 403"));
  CHECK(answer(loop, request("GET /stream", upgrade) + "early").starts_with("HTTP/1.1 400"));
  CHECK(wire_error(*loop.server_error) == ErrorCode::bad_message);
}

TEST_CASE("a browser of an allowed origin may connect") {
  Loopback loop;
  loop.options.origins = {"http://good.example"};
  auto socket = loop.raw();
  asio::write(socket, asio::buffer(request("GET /stream", upgrade + "Origin: http://good.example\r\n")));
  loop.run_until([&] { return loop.server != nullptr; });
  std::string head(12, ' ');
  asio::read(socket, asio::buffer(head));
  CHECK(head == "HTTP/1.1 101");
}

TEST_CASE("a request head above its limit, one that is no HTTP, and one with a body, get their status") {
  Loopback loop;
  CHECK(answer(loop, request("GET /stream", "X-Long: " + std::string(9000, 'x') + "\r\n")).starts_with("HTTP/1.1 431"));
  CHECK(wire_error(*loop.server_error) == ErrorCode::too_big);
  CHECK(answer(loop, "GET \x01\x02\x03\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(wire_error(*loop.server_error) == ErrorCode::bad_message);
  CHECK(answer(loop, request("GET /stream", upgrade + "Content-Length: 5\r\n")).starts_with("HTTP/1.1 413"));
  CHECK(*loop.server_error);
  CHECK_FALSE(loop.server);
}

TEST_CASE("a newcomer that says nothing, or half a request, is closed when its time is over") {
  for (const char* said : {"", "GE", "GET /str", "GET /stream HTTP/1.1\r\nHost: a\r\n"}) {
    INFO(said);
    Loopback loop;
    loop.options.limits.handshake = std::chrono::milliseconds(50);
    auto socket = loop.raw();
    asio::write(socket, asio::buffer(std::string(said)));
    loop.run_until([&] { return loop.server_error.has_value(); });
    CHECK(wire_error(*loop.server_error) == ErrorCode::idle);
    CHECK(loop.read_to_end(socket).empty());
  }
}

TEST_CASE("a client says when nobody listens, and when the server does not answer") {
  Loopback loop;
  const auto outcome = [&](std::uint16_t port, StreamUrl::Scheme scheme) {
    StreamUrl url;
    url.scheme = scheme;
    url.host = "127.0.0.1";
    url.port = port;
    Limits limits;
    limits.handshake = std::chrono::milliseconds(100);
    std::optional<error_code> result;
    async_connect_stream(loop.context.get_executor(), url, limits,
                         [&](error_code error, std::unique_ptr<MessageStream>) { result = error; });
    loop.run_until([&] { return result.has_value(); });
    return *result;
  };
  CHECK(wire_error(outcome(loop.listener.port(), StreamUrl::Scheme::ws)) == ErrorCode::idle);
  const std::uint16_t port = loop.listener.port();
  loop.listener.close();
  CHECK(outcome(port, StreamUrl::Scheme::tcp) == asio::error::connection_refused);
}

TEST_CASE("a URL names scheme, host, port and path, and anything else is refused") {
  CHECK(parse_stream_url("tcp://127.0.0.1:80").scheme == StreamUrl::Scheme::tcp);
  const StreamUrl ws = parse_stream_url("ws://[::1]:65535/other");
  CHECK(ws.scheme == StreamUrl::Scheme::ws);
  CHECK(ws.host == "::1");
  CHECK(ws.port == 65535);
  CHECK(ws.path == "/other");
  CHECK(parse_stream_url("tcps://a:1").scheme == StreamUrl::Scheme::tcps);
  CHECK(parse_stream_url("wss://a:1").is_encrypted());
  CHECK(parse_stream_url("wss://a:1").is_websocket());
  CHECK(parse_stream_url("ws://localhost:1").path == "/stream");
  CHECK(parse_stream_url("ws://localhost:1/").path == "/stream");
  for (const char* text :
       {"", "http://a:1", "tcp://", "tcp://a", "tcp://a:", "tcp://:1", "tcp://a:0", "tcp://a:65536", "tcp://a:1x", "tcp://a:1/stream",
        "tcp://a b:1", "ws://::1:1", "ws://a:1/x\r\nEvil: y", "wsss://a:1", "tcps://a:1/x", "ws:a:1", "://a:1", "ws://[]:1"})
    CHECK_THROWS_AS(parse_stream_url(text), ParseError);
}

TEST_CASE("a token of the wrong form, and one that would leave this machine without TLS, are refused before anything is sent") {
  asio::io_context context;
  const auto connect = [&](const std::string& host, StreamUrl::Scheme scheme, const std::string& token, bool in_clear) {
    StreamUrl url;
    url.scheme = scheme;
    url.host = host;
    url.port = 1;
    ConnectOptions options;
    options.token = token;
    options.token_in_clear = in_clear;
    asio::cancellation_signal stop;
    async_connect_stream(context.get_executor(), url, options,
                         asio::bind_cancellation_slot(stop.slot(), [](error_code, std::unique_ptr<MessageStream>) {}));
    stop.emit(asio::cancellation_type::terminal);
    context.restart();
    context.run();
  };
  const std::string token = "0123456789abcdef";
  CHECK_THROWS_AS(connect("127.0.0.1", StreamUrl::Scheme::tcp, "short", false), ArgumentError);
  CHECK_THROWS_AS(connect("127.0.0.1", StreamUrl::Scheme::ws, token + "\r\nEvil: y", false), ArgumentError);
  for (const auto scheme : both_schemes) {
    CHECK_THROWS_WITH_AS(connect("192.0.2.1", scheme, token, false), doctest::Contains("192.0.2.1"), ArgumentError);
    CHECK_THROWS_AS(connect("name.example", scheme, token, false), ArgumentError);
    CHECK_NOTHROW(connect("192.0.2.1", scheme, token, true));
    CHECK_NOTHROW(connect("192.0.2.1", scheme, "", false));
    for (const char* host : {"127.0.0.1", "::1", "localhost"}) CHECK_NOTHROW(connect(host, scheme, token, false));
  }
}

TEST_CASE("a message limit that TCP cannot tell from HTTP is refused") {
  Loopback loop;
  AcceptOptions options;
  options.limits.message = Limits::message_ceiling + 1;
  CHECK_THROWS_AS(async_accept_stream(asio::ip::tcp::socket(loop.context), options, [](error_code, std::unique_ptr<MessageStream>) {}),
                  ArgumentError);
}
