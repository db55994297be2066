// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/tls.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/bind_cancellation_slot.hpp>

#include <doctest/doctest.h>

#include <millrace/streaming/transport/wire_error.h>
#include <millrace/tensor/error.h>
#include <streaming/transport/loopback.h>
#include <support/bytes.h>
#include <support/with_openssl/certificates.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

using Scheme = StreamUrl::Scheme;
constexpr Scheme all_schemes[] = {Scheme::tcp, Scheme::ws, Scheme::tcps, Scheme::wss};
const std::string token = "a-token.of_some~length", other_token = "another-token.of_some~length";

struct Files {
  Files() { std::ofstream(folder / "tokens") << "# of this test\n\n" << other_token << "\n" << token << "\n"; }
  std::shared_ptr<TlsServer> server(const Authority::Certificate& made) const {
    return std::make_shared<TlsServer>(made.certificate, made.key);
  }
  std::shared_ptr<TokenSet> tokens() const { return std::make_shared<TokenSet>((folder / "tokens").string()); }
  ScratchFolder folder;
  Authority authority{folder / "ca"};
};

/// The outcome of one connection: the client's error, then the first thing that it hears of the server.
struct Attempt {
  error_code connect, accept;
  std::string heard;  ///< "hello" where the server got the client's message
};

/// `leaves`: the client ends with the first thing that it hears, for which a server that refuses waits.
Attempt try_connection(Loopback& loop, Scheme scheme, ConnectOptions options, bool leaves = false) {
  Attempt outcome;
  loop.accept();
  StreamUrl url;
  url.scheme = scheme;
  url.host = "127.0.0.1";
  url.port = loop.listener.port();
  std::optional<error_code> connected;
  options.token_in_clear = true;
  loop.client.reset();
  async_connect_stream(loop.context.get_executor(), url, options, [&](error_code error, std::unique_ptr<MessageStream> stream) {
    connected = error;
    loop.client = std::move(stream);
    // Plain TCP shows itself with its first bytes.
    if (error) return loop.listener.close();
    loop.client->async_write(text_message("hello"), [](error_code) {});
    if (!leaves) return;
    loop.client->async_read([&](error_code failed, Message message) {
      if (failed) return;
      outcome.heard = std::move(message.payload);
      loop.client.reset();
    });
  });
  loop.run_until([&] { return connected && (loop.server_error || *connected); });
  outcome.connect = *connected;
  outcome.accept = loop.server_error.value_or(error_code());
  if (loop.server) outcome.heard = loop.read(*loop.server).second.payload;
  if (loop.client && !loop.server) outcome.heard = loop.read(*loop.client).second.payload;
  return outcome;
}

/// Carries bytes from one socket to another, one at a time.
void carry_bytewise(asio::ip::tcp::socket& from, asio::ip::tcp::socket& to, char& byte) {
  asio::async_read(from, asio::buffer(&byte, 1), [&](error_code error, std::size_t) {
    error_code ignored;
    if (error) {
      to.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      return;
    }
    asio::write(to, asio::buffer(&byte, 1), ignored);
    carry_bytewise(from, to, byte);
  });
}

}  // namespace

TEST_CASE("each carrier is answered with its own TLS and token, and with no other") {
  Files files;
  const auto server = files.server(files.authority.make());
  const auto trusting = std::make_shared<TlsClient>(files.authority.file());
  for (const bool encrypted : {false, true})
    for (const bool guarded : {false, true})
      for (const Scheme scheme : all_schemes)
        for (const std::string& shown : {std::string(), token, other_token, std::string("a-token.of_some~lengtH")}) {
          CAPTURE(encrypted);
          CAPTURE(guarded);
          CAPTURE(static_cast<int>(scheme));
          CAPTURE(shown);
          StreamUrl url;
          url.scheme = scheme;
          AcceptOptions accept;
          // Ends that do not understand one another wait for their time to be over.
          accept.limits.handshake = std::chrono::milliseconds(url.is_encrypted() == encrypted ? 2000 : 200);
          if (encrypted) accept.tls = server;
          if (guarded) accept.tokens = files.tokens();
          Loopback loop(accept);
          ConnectOptions connect(accept.limits);
          connect.tls = trusting;
          connect.token = shown;
          if (url.is_encrypted() != encrypted) {
            if (encrypted && scheme == Scheme::tcp) continue;  // below: it is the server that notices
            CHECK(try_connection(loop, scheme, connect).connect);
            continue;
          }
          const Attempt outcome = try_connection(loop, scheme, connect, true);
          const bool known = shown == token || shown == other_token;
          if (!guarded && !url.is_websocket() && !shown.empty()) {
            CHECK(outcome.heard.find("\"auth\"") != std::string::npos);  // an answer to no question: the session refuses it
          } else if (!guarded || known) {
            CHECK(outcome.heard == "hello");
          } else if (url.is_websocket()) {
            CHECK(wire_error(outcome.connect) == ErrorCode::refused);
          } else {
            CHECK(wire_error(outcome.accept) == ErrorCode::refused);
            CHECK(outcome.heard.starts_with("{\"type\":\"error\",\"code\":\"refused\",\"message\":\"expected "));
            CHECK(outcome.heard.find(shown.empty() ? "hello" : shown) == std::string::npos);  // nothing of it is said back
          }
        }
}

TEST_CASE("a certificate that is expired, not valid yet, of another name, or of an unknown authority is refused by its reason") {
  Files files;
  Authority other(files.folder / "other");
  struct Case {
    Authority::Certificate certificate;
    const char* why;
  };
  const Case cases[] = {{files.authority.make({}, -7000, -60), "certificate has expired"},
                        {files.authority.make({}, 3600, 7200), "certificate is not yet valid"},
                        {files.authority.make("elsewhere.example"), "IP address mismatch"},
                        {other.make(), "unable to get local issuer certificate"}};
  for (const Case& one : cases) {
    CAPTURE(one.why);
    AcceptOptions accept;
    accept.tls = files.server(one.certificate);
    for (const Scheme scheme : {Scheme::tcps, Scheme::wss}) {
      ConnectOptions connect;
      connect.tls = std::make_shared<TlsClient>(files.authority.file());
      Loopback loop(accept);
      const error_code error = try_connection(loop, scheme, connect).connect;
      CHECK(error.message() == std::string("the server's certificate: ") + one.why);
      connect.tls = std::make_shared<TlsClient>(TlsClient::trusting_anyone());
      Loopback again(accept);
      CHECK(try_connection(again, scheme, connect).heard == "hello");
    }
  }
}

TEST_CASE("plain bytes to a port of TLS end the connection, and silence ends it in time") {
  Files files;
  AcceptOptions accept;
  accept.tls = files.server(files.authority.make());
  accept.limits.handshake = std::chrono::milliseconds(300);
  for (const std::string& text :
       {std::string("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"), std::string("\x05\0\0\0Jhello", 10), std::string(2000, '\x16')}) {
    Loopback loop(accept);
    auto socket = loop.raw();
    asio::write(socket, asio::buffer(text));
    loop.run_until([&] { return loop.server_error.has_value(); });
    CHECK(*loop.server_error);
    CHECK_FALSE(loop.server);
  }
  Loopback loop(accept);
  auto socket = loop.raw();
  loop.run_until([&] { return loop.server_error.has_value(); });
  CHECK(wire_error(*loop.server_error) == ErrorCode::idle);
}

TEST_CASE("messages of any size go both ways over TLS, and a close lets the peer read them all") {
  Files files;
  AcceptOptions accept;
  accept.tls = files.server(files.authority.make());
  for (const Scheme scheme : {Scheme::tcps, Scheme::wss}) {
    Loopback loop(accept);
    ConnectOptions connect;
    connect.tls = std::make_shared<TlsClient>(files.authority.file());
    REQUIRE(try_connection(loop, scheme, connect).heard == "hello");
    for (const std::size_t bytes : {0, 1, 16383, 16384, 16385, 300000}) {
      const Message sent{MessageKind::binary, std::string(bytes, 'x')};
      bool written = false;
      loop.client->async_write(sent, [&](error_code error) { written = !error; });
      CHECK(loop.read(*loop.server).second.payload == sent.payload);
      loop.run_until([&] { return written; });
      loop.server->async_write(sent, [](error_code) {});
      CHECK(loop.read(*loop.client).second.payload == sent.payload);
    }
    loop.server->async_write(text_message("the last"), [&](error_code) { loop.server->async_close(1000, [](error_code) {}); });
    CHECK(loop.read(*loop.client).second.payload == "the last");
    CHECK(loop.read(*loop.client).first == asio::error::eof);
  }
}

TEST_CASE("bytes of TLS that arrive one by one make the same handshake and the same messages") {
  Files files;
  AcceptOptions accept;
  accept.tls = files.server(files.authority.make());
  Loopback loop(accept);
  asio::ip::tcp::acceptor between(loop.context, {asio::ip::make_address("127.0.0.1"), 0});
  asio::ip::tcp::socket near(loop.context), far(loop.context);
  char there = 0, back = 0;
  between.async_accept(near, [&](error_code) {
    far.connect({asio::ip::make_address("127.0.0.1"), loop.listener.port()});
    near.set_option(asio::ip::tcp::no_delay(true));
    far.set_option(asio::ip::tcp::no_delay(true));
    carry_bytewise(near, far, there);
    carry_bytewise(far, near, back);
  });
  loop.accept();
  StreamUrl url;
  url.scheme = Scheme::tcps;
  url.host = "127.0.0.1";
  url.port = between.local_endpoint().port();
  ConnectOptions connect;
  connect.tls = std::make_shared<TlsClient>(files.authority.file());
  async_connect_stream(loop.context.get_executor(), url, connect, [&](error_code error, std::unique_ptr<MessageStream> stream) {
    CHECK_FALSE(error);
    loop.client = std::move(stream);
    if (loop.client) loop.client->async_write(text_message("hello"), [](error_code) {});
  });
  loop.run_until([&] { return loop.server_error.has_value(); });
  REQUIRE(loop.server);
  CHECK(loop.read(*loop.server).second.payload == "hello");
  const Message large{MessageKind::binary, std::string(40000, 'x')};
  loop.client->async_write(large, [](error_code) {});
  CHECK(loop.read(*loop.server).second.payload == large.payload);
  loop.server->async_write_all({large, text_message("last")}, [&](error_code) { loop.server->async_close(1000, [](error_code) {}); });
  CHECK(loop.read(*loop.client).second.payload == large.payload);
  CHECK(loop.read(*loop.client).second.payload == "last");
  CHECK(loop.read(*loop.client).first == asio::error::eof);
}

TEST_CASE("a peer of TLS that is cut off in the middle is no end of the stream, whatever it had sent") {
  Files files;
  AcceptOptions accept;
  accept.tls = files.server(files.authority.make());
  for (const bool mid_record : {false, true}) {
    Loopback loop(accept);
    ConnectOptions connect;
    connect.tls = std::make_shared<TlsClient>(files.authority.file());
    REQUIRE(try_connection(loop, Scheme::tcps, connect).heard == "hello");
    // The client's socket goes without a word of TLS: aborting sends none.
    if (mid_record) loop.client->async_write({MessageKind::binary, std::string(1 << 20, 'x')}, [](error_code) {});
    loop.client->abort();
    CHECK(loop.read(*loop.server).first == asio::error::connection_reset);
  }
}

TEST_CASE("a stream of TLS that goes away, or is aborted, ends what is pending on it") {
  Files files;
  AcceptOptions accept;
  accept.tls = files.server(files.authority.make());
  for (const bool destroyed : {false, true}) {
    Loopback loop(accept);
    ConnectOptions connect;
    connect.tls = std::make_shared<TlsClient>(files.authority.file());
    REQUIRE(try_connection(loop, Scheme::tcps, connect).heard == "hello");
    std::optional<error_code> read, peer;
    loop.server->async_read([&](error_code error, Message) { read = error; });
    loop.client->async_read([&](error_code error, Message) { peer = error; });
    loop.context.poll();
    if (destroyed)
      loop.server.reset();
    else
      loop.server->abort();
    loop.run_until([&] { return read && peer; });
    CHECK(*read);
    CHECK(*peer);
  }
}

TEST_CASE("reloaded files are for connections from then on, and files that are wrong change nothing") {
  Files files;
  const Authority::Certificate first = files.authority.make({}, -7000, -60), second = files.authority.make();
  std::filesystem::copy_file(first.certificate, files.folder / "now.pem");
  std::filesystem::copy_file(first.key, files.folder / "now.key");
  const auto server = std::make_shared<TlsServer>((files.folder / "now.pem").string(), (files.folder / "now.key").string());
  AcceptOptions accept;
  accept.tls = server;
  ConnectOptions connect;
  connect.tls = std::make_shared<TlsClient>(files.authority.file());
  const auto message = [&] {
    Loopback loop(accept);
    return try_connection(loop, Scheme::tcps, connect).connect.message();
  };
  CHECK(message() == "the server's certificate: certificate has expired");
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(second.certificate, files.folder / "now.pem", overwrite);
  CHECK_THROWS_WITH_AS(server->reload(), doctest::Contains("of the certificate in"), ParseError);
  CHECK(message() == "the server's certificate: certificate has expired");
  std::filesystem::copy_file(second.key, files.folder / "now.key", overwrite);
  server->reload();
  CHECK(message() == "Success");
}

TEST_CASE("files that are missing, or hold something else, are refused by name") {
  Files files;
  const Authority::Certificate good = files.authority.make();
  const std::string missing = (files.folder / "nothing").string(), text = (files.folder / "tokens").string();
  CHECK_THROWS_WITH_AS(TlsServer(missing, good.key), doctest::Contains(missing.c_str()), IoError);
  CHECK_THROWS_WITH_AS(TlsServer(good.certificate, missing), doctest::Contains(missing.c_str()), IoError);
  CHECK_THROWS_WITH_AS(TlsServer(text, good.key), doctest::Contains("tokens: expected certificates in PEM"), ParseError);
  CHECK_THROWS_WITH_AS(TlsServer(good.certificate, text), doctest::Contains("tokens: expected the private key in PEM"), ParseError);
  CHECK_THROWS_WITH_AS(TlsClient{missing}, doctest::Contains(missing.c_str()), IoError);
  CHECK_THROWS_WITH_AS(TlsClient{text}, doctest::Contains("certificates of authorities"), ParseError);
}

TEST_CASE("a handshake of TLS can be cancelled") {
  Files files;
  AcceptOptions accept;
  accept.tls = files.server(files.authority.make());
  Loopback loop;
  asio::cancellation_signal signal;
  std::optional<error_code> ended;
  asio::ip::tcp::socket client(loop.context);
  loop.listener.async_accept([&](error_code, asio::ip::tcp::socket socket) {
    async_accept_stream(
        std::move(socket), accept,
        asio::bind_cancellation_slot(signal.slot(), [&](error_code error, std::unique_ptr<MessageStream>) { ended = error; }));
  });
  client.connect({asio::ip::make_address("127.0.0.1"), loop.listener.port()});
  loop.context.poll();
  loop.context.run_for(std::chrono::milliseconds(20));
  signal.emit(asio::cancellation_type::terminal);
  loop.run_until([&] { return ended.has_value(); });
  CHECK(*ended == asio::error::operation_aborted);
}
