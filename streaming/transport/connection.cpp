// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/connection.h>

#include <boost/asio/compose.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/auth.h>
#include <millrace/streaming/protocol/control.h>
#include <millrace/streaming/transport/byte_stream.h>
#include <millrace/streaming/transport/tcp_stream.h>
#include <millrace/streaming/transport/websocket_stream.h>
#include <millrace/streaming/transport/wire_error.h>
#include <millrace/tensor/error.h>

namespace millrace {

using asio::ip::tcp;

namespace {

using Pointer = std::unique_ptr<MessageStream>;

/// A connection in the making, and the deadline that closes its socket wherever that is by then.
struct Handshake : std::enable_shared_from_this<Handshake> {
  Handshake(const asio::any_io_executor& executor, tcp::socket connected, const Limits& within)
      : socket(std::move(connected)), resolver(executor), timer(executor, within.handshake), limits(within) {}

  void arm() {
    timer.async_wait([weak = weak_from_this()](error_code cancelled) {
      const auto self = weak.lock();
      if (cancelled || !self) return;
      self->expired = true;
      error_code ignored;
      self->resolver.cancel();
      self->socket.close(ignored);
      if (const auto moved = self->carrier.lock()) moved->close();
    });
  }
  void carry(ByteStream made) {
    carrier = made.carrier();
    bytes.emplace(std::move(made));
  }
  ByteStream take_bytes() {
    ByteStream taken = *std::move(bytes);
    bytes.reset();
    return taken;
  }
  template <class Self>
  void complete(Self& self, error_code error, Pointer stream) {
    timer.cancel();
    if (expired) error = ErrorCode::idle;
    if (error) stream.reset();
    self.complete(error, std::move(stream));
  }

  tcp::socket socket;
  tcp::resolver resolver;
  asio::steady_timer timer;
  Limits limits;
  std::optional<ByteStream> bytes;
  std::weak_ptr<ByteStream::Carrier> carrier;
  std::array<char, 4> first;
  Pointer framed;  // plain TCP: while its peer shows a token
  bool expired = false;
};

// The first bytes of an HTTP request are a method in capitals; read as a length of a frame they are above any limit
// (Limits::message_ceiling).
bool begins_http(const std::array<char, 4>& first) {
  return std::all_of(first.begin(), first.end(), [](char c) { return (c >= 'A' && c <= 'Z') || c == ' '; });
}

bool shows_token(const Message& message, const TokenSet& tokens) {
  try {
    return message.kind == MessageKind::text && tokens.holds(parse_auth_message(message.payload).token);
  } catch (const ProtocolError&) {
    return false;  // any other peer: it is told what was expected
  }
}

struct AcceptOp {
  std::shared_ptr<Handshake> shake;
  AcceptOptions options;
  enum { begin, agreeing, telling, closing } stage = begin;

  template <class Self>
  void operator()(Self& self) {
    const auto held = shake;  // this op moves away with self
    held->arm();
    if (!options.tls) return read_first(self);
    stage = agreeing;
    held->bytes->async_handshake(std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error) {
    if (stage == agreeing) {
      if (error || shake->expired) return shake->complete(self, error, Pointer());
      return read_first(self);
    }
    const auto held = shake;
    if (error || stage == closing) return held->complete(self, ErrorCode::refused, Pointer());
    stage = closing;
    held->framed->async_close(close_code_of(ErrorCode::refused), std::move(self));
  }
  template <class Self>
  void read_first(Self& self) {
    const auto held = shake;
    asio::async_read(*held->bytes, asio::buffer(held->first), std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, std::size_t) {
    if (error == asio::error::eof) error = asio::error::connection_reset;  // eof is the end of a page
    if (error || shake->expired) return shake->complete(self, error, Pointer());
    const auto held = shake;
    ByteStream bytes = put_back(held->take_bytes(), std::string(held->first.data(), held->first.size()));
    if (begins_http(held->first)) {
      HttpAccess access;
      access.origins = std::move(options.origins);
      access.tokens = options.tokens;
      access.pages = options.pages;
      access.routes = options.routes;
      access.encrypted = options.tls != nullptr;
      return accept_websocket(std::move(bytes), held->limits, std::move(access), MessageStreamHandler(std::move(self)));
    }
    held->framed = make_tcp_stream(std::move(bytes), held->limits.message);
    if (!options.tokens) return held->complete(self, error, std::move(held->framed));
    held->framed->limit(most_auth_bytes, most_auth_bytes);
    held->framed->async_read(std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, Message message) {
    const auto held = shake;
    if (error && !wire_error(error)) return held->complete(self, error, Pointer());
    if (!error && shows_token(message, *options.tokens)) {
      held->framed->limit(held->limits.message, held->limits.message);
      return held->complete(self, error, std::move(held->framed));
    }
    stage = telling;
    const ErrorMessage why{ErrorCode::refused, "expected an auth message with a token that this server knows, ahead of start", {}, {}};
    Message told = text_message(to_json(why));
    held->framed->async_write(std::move(told), std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, Pointer stream) {
    shake->complete(self, error, std::move(stream));
  }
};

struct ConnectOp {
  std::shared_ptr<Handshake> shake;
  StreamUrl url;
  ConnectOptions options;
  enum { connecting, agreeing, showing } stage = connecting;

  template <class Self>
  void operator()(Self& self) {
    shake->arm();
    const auto held = shake;
    error_code error;
    const auto address = asio::ip::make_address(url.host, error);
    if (!error) return held->socket.async_connect(tcp::endpoint(address, url.port), std::move(self));
    const std::string host = url.host, port = std::to_string(url.port);  // this op moves away with self
    held->resolver.async_resolve(host, port, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, tcp::resolver::results_type found) {
    if (error || shake->expired) return shake->complete(self, error, Pointer());
    const auto held = shake;
    asio::async_connect(held->socket, found, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, const tcp::endpoint&) {
    (*this)(self, error);
  }
  template <class Self>
  void operator()(Self& self, error_code error) {
    const auto held = shake;
    if (error || held->expired) return held->complete(self, error, Pointer());
    if (stage == showing) return held->complete(self, error, std::move(held->framed));
    if (stage == agreeing || !url.is_encrypted()) {
      if (!held->bytes) held->carry(make_byte_stream(std::move(held->socket)));
      return speak(self);
    }
    held->carry(options.tls->connect(std::move(held->socket), url.host));
    stage = agreeing;
    held->bytes->async_handshake(std::move(self));
  }
  template <class Self>
  void speak(Self& self) {
    const auto held = shake;
    if (!url.is_websocket()) {
      held->framed = make_tcp_stream(held->take_bytes(), held->limits.message);
      if (options.token.empty()) return held->complete(self, error_code(), std::move(held->framed));
      stage = showing;
      Message shown = text_message(to_json(AuthMessage{options.token}));
      return held->framed->async_write(std::move(shown), std::move(self));
    }
    const bool v6 = url.host.find(':') != std::string::npos;
    std::string host = (v6 ? "[" + url.host + "]" : url.host) + ":" + std::to_string(url.port);
    std::string path = url.path, token = options.token;
    connect_websocket(held->take_bytes(), held->limits, std::move(host), std::move(path), std::move(token),
                      MessageStreamHandler(std::move(self)));
  }
  template <class Self>
  void operator()(Self& self, error_code error, Pointer stream) {
    shake->complete(self, error, std::move(stream));
  }
};

// Whether what is sent to it stays on this machine, whoever resolves names.
bool is_this_machine(const std::string& host) {
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  return error ? host == "localhost" : address.is_loopback();
}

}  // namespace

StreamUrl parse_stream_url(std::string_view text) {
  const auto fail = [&] {
    throw ParseError("url: expected tcp://HOST:PORT or ws://HOST:PORT[/PATH], or tcps or wss for TLS, found '" + std::string(text) + "'");
  };
  StreamUrl url;
  std::string_view rest = text;
  const std::string_view scheme = rest.substr(0, std::min(rest.find("://"), rest.size()));
  constexpr std::pair<std::string_view, StreamUrl::Scheme> schemes[] = {
      {"tcp", StreamUrl::Scheme::tcp}, {"ws", StreamUrl::Scheme::ws}, {"tcps", StreamUrl::Scheme::tcps}, {"wss", StreamUrl::Scheme::wss}};
  const auto* known = std::find_if(std::begin(schemes), std::end(schemes), [&](const auto& one) { return one.first == scheme; });
  if (known == std::end(schemes) || rest.size() == scheme.size()) fail();
  url.scheme = known->second;
  rest.remove_prefix(scheme.size() + 3);
  if (std::any_of(rest.begin(), rest.end(), [](char c) { return c <= ' ' || c >= 0x7f; })) fail();
  if (const auto slash = rest.find('/'); slash != rest.npos) {
    if (!url.is_websocket()) fail();
    if (rest.size() > slash + 1) url.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  const auto colon = rest.rfind(':');
  if (colon == rest.npos) fail();
  std::string_view host = rest.substr(0, colon), port = rest.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != host.npos)
    fail();
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
  if (host.empty() || error != std::errc() || end != port.data() + port.size() || url.port == 0) fail();
  url.host = host;
  return url;
}

namespace {

void accept_bytes(ByteStream bytes, AcceptOptions options, MessageStreamHandler handler) {
  if (options.limits.message > Limits::message_ceiling)
    throw ArgumentError("limits: expected messages of at most " + std::to_string(Limits::message_ceiling) + " bytes, found " +
                        std::to_string(options.limits.message));
  const asio::any_io_executor executor = bytes.get_executor();
  const auto shake = std::make_shared<Handshake>(executor, tcp::socket(executor), options.limits);
  shake->carry(std::move(bytes));
  AcceptOp op{shake, std::move(options)};
  asio::async_compose<MessageStreamHandler, void(error_code, Pointer)>(std::move(op), handler, executor);
}

}  // namespace

void accept_stream(tcp::socket socket, AcceptOptions options, MessageStreamHandler handler) {
  ByteStream bytes = options.tls ? options.tls->accept(std::move(socket)) : make_byte_stream(std::move(socket));
  accept_bytes(std::move(bytes), std::move(options), std::move(handler));
}
void accept_stream(ByteStream bytes, AcceptOptions options, MessageStreamHandler handler) {
  options.tls.reset();
  accept_bytes(std::move(bytes), std::move(options), std::move(handler));
}

void connect_stream(const asio::any_io_executor& executor, StreamUrl url, ConnectOptions options, MessageStreamHandler handler) {
  if (!options.token.empty() && !is_token(options.token))
    throw ArgumentError("token: expected 16 to 128 characters of A-Z a-z 0-9 - . _ ~, found " + std::to_string(options.token.size()) +
                        " characters, or others");
  if (!options.token.empty() && !url.is_encrypted() && !options.token_in_clear && !is_this_machine(url.host))
    throw ArgumentError("token: expected tcps or wss for a token that goes to " + url.host + ", found a connection without TLS");
  if (url.is_encrypted() && !options.tls) options.tls = std::make_shared<TlsClient>();
  const auto shake = std::make_shared<Handshake>(executor, tcp::socket(executor), options.limits);
  ConnectOp op{shake, std::move(url), std::move(options)};
  asio::async_compose<MessageStreamHandler, void(error_code, Pointer)>(std::move(op), handler, executor);
}

}  // namespace millrace
