// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/connection.h>

#include <boost/asio/compose.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <array>
#include <charconv>

#include <millrace/runtime/task/asio.h>
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
  ByteStream take_bytes(std::string read_already) {
    ByteStream bytes = make_byte_stream(std::move(socket), std::move(read_already));
    carrier = bytes.carrier();
    return bytes;
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
  std::weak_ptr<ByteStream::Carrier> carrier;
  std::array<char, 4> first;
  bool expired = false;
};

// The first bytes of an HTTP request are a method in capitals; read as a length of a frame they are above any limit
// (Limits::message_ceiling).
bool begins_http(const std::array<char, 4>& first) {
  return std::all_of(first.begin(), first.end(), [](char c) { return (c >= 'A' && c <= 'Z') || c == ' '; });
}

struct AcceptOp {
  std::shared_ptr<Handshake> shake;
  std::vector<std::string> origins;

  template <class Self>
  void operator()(Self& self) {
    shake->arm();
    auto& to = *shake;  // this op moves away with self
    asio::async_read(to.socket, asio::buffer(to.first), std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, std::size_t) {
    if (error || shake->expired) return shake->complete(self, error, Pointer());
    const auto held = shake;
    ByteStream bytes = held->take_bytes(std::string(held->first.data(), held->first.size()));
    if (!begins_http(held->first)) return held->complete(self, error, make_tcp_stream(std::move(bytes), held->limits.message));
    std::vector<std::string> allowed = std::move(origins);
    accept_websocket(std::move(bytes), held->limits, std::move(allowed), MessageStreamHandler(std::move(self)));
  }
  template <class Self>
  void operator()(Self& self, error_code error, Pointer stream) {
    shake->complete(self, error, std::move(stream));
  }
};

struct ConnectOp {
  std::shared_ptr<Handshake> shake;
  StreamUrl url;

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
    if (error || shake->expired) return shake->complete(self, error, Pointer());
    const auto held = shake;
    ByteStream bytes = held->take_bytes({});
    if (url.scheme == StreamUrl::Scheme::tcp) return held->complete(self, error, make_tcp_stream(std::move(bytes), held->limits.message));
    const bool v6 = url.host.find(':') != std::string::npos;
    std::string host = (v6 ? "[" + url.host + "]" : url.host) + ":" + std::to_string(url.port);
    std::string path = url.path;
    connect_websocket(std::move(bytes), held->limits, std::move(host), std::move(path), MessageStreamHandler(std::move(self)));
  }
  template <class Self>
  void operator()(Self& self, error_code error, Pointer stream) {
    shake->complete(self, error, std::move(stream));
  }
};

}  // namespace

StreamUrl parse_stream_url(std::string_view text) {
  const auto fail = [&] { throw ParseError("url: expected tcp://HOST:PORT or ws://HOST:PORT[/PATH], found '" + std::string(text) + "'"); };
  StreamUrl url;
  std::string_view rest = text;
  if (rest.starts_with("tcp://")) {
    rest.remove_prefix(6);
  } else if (rest.starts_with("ws://")) {
    url.scheme = StreamUrl::Scheme::ws;
    rest.remove_prefix(5);
  } else {
    fail();
  }
  if (std::any_of(rest.begin(), rest.end(), [](char c) { return c <= ' ' || c >= 0x7f; })) fail();
  if (const auto slash = rest.find('/'); slash != rest.npos) {
    if (url.scheme == StreamUrl::Scheme::tcp) fail();
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

void accept_stream(tcp::socket socket, AcceptOptions options, MessageStreamHandler handler) {
  if (options.limits.message > Limits::message_ceiling)
    throw ArgumentError("limits: expected messages of at most " + std::to_string(Limits::message_ceiling) + " bytes, found " +
                        std::to_string(options.limits.message));
  const asio::any_io_executor executor = socket.get_executor();
  AcceptOp op{std::make_shared<Handshake>(executor, std::move(socket), options.limits), std::move(options.origins)};
  asio::async_compose<MessageStreamHandler, void(error_code, Pointer)>(std::move(op), handler, executor);
}

void connect_stream(const asio::any_io_executor& executor, StreamUrl url, Limits limits, MessageStreamHandler handler) {
  ConnectOp op{std::make_shared<Handshake>(executor, tcp::socket(executor), limits), std::move(url)};
  asio::async_compose<MessageStreamHandler, void(error_code, Pointer)>(std::move(op), handler, executor);
}

}  // namespace millrace
