// SPDX-License-Identifier: Apache-2.0
// The one translation unit that includes Beast.
#include <millrace/streaming/transport/websocket_stream.h>

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/append.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/associator.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <boost/beast/websocket/stream.hpp>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/base64.h>
#include <millrace/streaming/transport/wire_error.h>
#include <millrace/tensor/error.h>

namespace millrace {

namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;

namespace {

/// The cost of one message beside its payload: Beast takes fragments without bytes by itself, any number of them.
struct Meter {
  explicit Meter(const std::string& of) : payload(of) {}
  static constexpr std::size_t most_beside_payload = 16384;
  // Bytes that arrive during a close are dropped. A peer that sends more than the kernels of both ends hold has sent some behind the close.
  static constexpr std::size_t most_while_closing = std::size_t{16} << 20U;
  const std::string& payload;
  std::size_t bytes = 0;  // that arrived since the message before
  bool closing = false;

  void close() noexcept {
    closing = true;
    bytes = 0;
  }
  /// A ping or a pong between the fragments is none of them.
  void forgive(std::size_t control_bytes) noexcept {
    if (!closing) bytes -= std::min(bytes, control_bytes);
  }
  bool too_much() const noexcept { return bytes > (closing ? most_while_closing : most_beside_payload + payload.size()); }
};

/// A handler of a read that counts.
template <class Handler>
struct Metered {
  Handler handler;
  std::shared_ptr<Meter> meter;
  std::weak_ptr<ByteStream::Carrier> carrier;

  void operator()(error_code error, std::size_t count) {
    meter->bytes += count;
    if (!error && meter->too_much()) {
      error = ErrorCode::bad_message;
      if (const auto open = carrier.lock()) open->close();
    }
    std::move(handler)(error, count);
  }
};

/// A stream of bytes that counts what is read.
class MeteredBytes : public ByteStream {
 public:
  explicit MeteredBytes(ByteStream bytes) : ByteStream(std::move(bytes)) {}

  void count_by(std::shared_ptr<Meter> meter) noexcept { meter_ = std::move(meter); }
  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return asio::async_initiate<Token, void(error_code, std::size_t)>(
        [](auto handler, ByteStream* bytes, const ReadBuffers& list, std::shared_ptr<Meter> meter) {
          bytes->async_read_some(list, Metered<std::decay_t<decltype(handler)>>{std::move(handler), std::move(meter), bytes->carrier()});
        },
        token, static_cast<ByteStream*>(this), ReadBuffers(buffers), meter_);
  }

 private:
  std::shared_ptr<Meter> meter_;
};

}  // namespace
}  // namespace millrace

/// It is called where, and allocates as, the handler that it wraps.
template <template <class, class> class Associator, class Handler, class Default>
struct millrace::asio::associator<Associator, millrace::Metered<Handler>, Default> : Associator<Handler, Default> {
  static typename Associator<Handler, Default>::type get(const millrace::Metered<Handler>& metered) noexcept {
    return Associator<Handler, Default>::get(metered.handler);
  }
  static auto get(const millrace::Metered<Handler>& metered, const Default& otherwise) noexcept
      -> decltype(Associator<Handler, Default>::get(metered.handler, otherwise)) {
    return Associator<Handler, Default>::get(metered.handler, otherwise);
  }
};

namespace millrace {
namespace {

// The end of a stream that is not a socket, for Beast; found by argument-dependent lookup.
template <class Handler>
void async_teardown(beast::role_type, MeteredBytes& bytes, Handler&& handler) {
  bytes.async_shut_down(std::forward<Handler>(handler));
}
void beast_close_socket(MeteredBytes& bytes) { bytes.close(); }

using WebSocket = websocket::stream<MeteredBytes, false>;

struct Web {
  Web(ByteStream bytes, const Limits& limits) : socket(MeteredBytes(std::move(bytes))) {
    socket.next_layer().count_by(meter);
    socket.control_callback([this](websocket::frame_type kind, beast::string_view payload) {
      constexpr std::size_t head = 6;
      meter->forgive(head + payload.size());
      if (kind != websocket::frame_type::close) last_ping = std::chrono::steady_clock::now();
    });
    websocket::stream_base::timeout timeout;
    timeout.handshake_timeout = limits.handshake;  // also of closing
    timeout.idle_timeout = websocket::stream_base::none();
    timeout.keep_alive_pings = false;
    socket.set_option(timeout);
    socket.read_message_max(limits.message);
  }
  Message incoming;
  std::shared_ptr<Meter> meter = std::make_shared<Meter>(incoming.payload);
  std::chrono::steady_clock::time_point last_ping{};
  std::size_t max_text = std::numeric_limits<std::size_t>::max();
  std::string route;
  bool out_of_memory = false;  // for the message that is being read
  WebSocket socket;
};

/// The payload that is being read. Beast knows one error of a buffer, that of its length; memory that runs out is told so and noted.
class PayloadBuffer : public asio::dynamic_string_buffer<char, std::char_traits<char>, std::allocator<char>> {
 public:
  explicit PayloadBuffer(Web& web) : dynamic_string_buffer(web.incoming.payload), web_(web) {}

  mutable_buffers_type prepare(std::size_t bytes) {
    try {
      return dynamic_string_buffer::prepare(bytes);
    } catch (const std::bad_alloc&) {
      web_.out_of_memory = true;
      throw std::length_error("no memory is left");
    }
  }

 private:
  Web& web_;
};

// The peer's doing, in the protocol's words; the network's own errors stay as they are.
error_code translate(const error_code& error) {
  if (error == websocket::error::closed) return asio::error::eof;
  if (error == websocket::error::message_too_big || error == websocket::error::buffer_overflow) return ErrorCode::too_big;
  if (error == websocket::error::bad_frame_payload) return ErrorCode::bad_text;
  if (error == websocket::condition::protocol_violation) return ErrorCode::bad_message;
  if (error == beast::error::timeout) return ErrorCode::idle;
  if (error == websocket::condition::handshake_failed || error == websocket::error::upgrade_declined) return ErrorCode::refused;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return ErrorCode::too_big;
  if (error.category() == make_error_code(http::error::bad_version).category()) return ErrorCode::bad_message;
  return error;
}

// For a request that cannot be read.
http::status status_of(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return http::status::request_header_fields_too_large;
  return error == http::error::body_limit ? http::status::payload_too_large : http::status::bad_request;
}

struct ReadOp {
  std::shared_ptr<Web> web;

  template <class Self>
  void operator()(Self& self) {
    web->incoming = Message();
    web->out_of_memory = false;
    web->meter->bytes = 0;
    web->socket.async_read(*buffer, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, std::size_t) {
    if (web->out_of_memory) {
      web->incoming = Message();
      error = ErrorCode::overload;
    }
    if (error) return self.complete(translate(error), Message());
    web->incoming.kind = web->socket.got_text() ? MessageKind::text : MessageKind::binary;
    if (web->socket.got_text() && web->incoming.payload.size() > web->max_text) return self.complete(ErrorCode::too_big, Message());
    self.complete(error_code(), std::move(web->incoming));
  }

  std::shared_ptr<PayloadBuffer> buffer = std::make_shared<PayloadBuffer>(*web);
};

struct WriteOp {
  std::shared_ptr<Web> web;
  std::shared_ptr<std::vector<Message>> messages;
  std::size_t next = 0;

  template <class Self>
  void operator()(Self& self) {
    const Message& message = (*messages)[next++];
    web->socket.text(message.kind == MessageKind::text);
    web->socket.async_write(asio::buffer(message.payload), std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, std::size_t) {
    if (!error && next < messages->size()) return (*this)(self);
    self.complete(translate(error));
  }
};

struct CloseOp {
  std::shared_ptr<Web> web;
  std::uint16_t code;

  template <class Self>
  void operator()(Self& self) {
    web->meter->close();
    web->socket.async_close(websocket::close_reason(code), std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code) {
    // The handshake of closing may fail because the peer is gone: the stream is closed all the same.
    web->socket.next_layer().close();
    self.complete(error_code());
  }
};

/// A handler that Beast can hold: it says that the stream's executor is its own, and hands over to the executor, with the allocator and the
/// cancellation slot, of the type-erased one. (Beast posts to a handler's executor, which the executor of an any_completion_handler cannot
/// do before Asio 1.27.)
template <class Handler>
class OnStream {
 public:
  using executor_type = asio::any_io_executor;
  using allocator_type = asio::associated_allocator_t<Handler>;
  using cancellation_slot_type = asio::associated_cancellation_slot_t<Handler>;

  OnStream(Handler handler, executor_type executor)
      : handler_(std::move(handler)),
        executor_(std::move(executor)),
        work_(asio::get_associated_executor(handler_, asio::any_completion_executor(executor_))) {}

  executor_type get_executor() const noexcept { return executor_; }
  allocator_type get_allocator() const noexcept { return asio::get_associated_allocator(handler_); }
  cancellation_slot_type get_cancellation_slot() const noexcept { return asio::get_associated_cancellation_slot(handler_); }

  template <class... Results>
  void operator()(Results... results) {
    asio::dispatch(executor_, asio::append(std::move(handler_), std::move(results)...));
    work_.reset();
  }

 private:
  Handler handler_;
  executor_type executor_;
  asio::executor_work_guard<asio::any_completion_executor> work_;
};

template <class Signature, class Op>
void launch(Op op, asio::any_completion_handler<Signature> handler, const asio::any_io_executor& executor) {
  OnStream<asio::any_completion_handler<Signature>> on_stream(std::move(handler), executor);
  asio::async_compose<decltype(on_stream), Signature>(std::move(op), on_stream, executor);
}

class WebStream final : public MessageStream {
 public:
  explicit WebStream(std::shared_ptr<Web> web) : web_(std::move(web)) {}
  ~WebStream() override { abort(); }

  executor_type get_executor() override { return web_->socket.get_executor(); }
  void limit(std::size_t bytes, std::size_t text_bytes) noexcept override {
    web_->socket.read_message_max(bytes);
    web_->max_text = text_bytes;
  }
  std::chrono::steady_clock::time_point last_ping() const noexcept override { return web_->last_ping; }
  std::string_view route() const noexcept override { return web_->route; }
  void abort() noexcept override { web_->socket.next_layer().close(); }
  std::uint16_t peer_close_code() const noexcept override { return web_->socket.reason().code; }

 protected:
  void read(ReadHandler handler) override {
    ReadOp op{web_};
    launch(std::move(op), std::move(handler), get_executor());
  }
  void write(Message message, DoneHandler handler) override {
    std::vector<Message> one;
    one.push_back(std::move(message));
    write_all(std::move(one), std::move(handler));
  }
  void write_all(std::vector<Message> messages, DoneHandler handler) override {
    WriteOp op{web_, std::make_shared<std::vector<Message>>(std::move(messages))};
    launch(std::move(op), std::move(handler), get_executor());
  }
  void close(std::uint16_t code, DoneHandler handler) override {
    CloseOp op{web_, code};
    launch(std::move(op), std::move(handler), get_executor());
  }

 private:
  std::shared_ptr<Web> web_;
};

using Pointer = std::unique_ptr<MessageStream>;

// Nobody can make a browser believe that an address is theirs, as they can of a name.
bool names_an_address(std::string_view host) {
  const auto bracket = host.rfind(']'), colon = host.rfind(':');
  if (colon != host.npos && (bracket == host.npos || colon > bracket)) host = host.substr(0, colon);
  if (beast::iequals(host, "localhost")) return true;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  error_code error;
  asio::ip::make_address(std::string(host), error);
  return !error;
}

/// A host of a URI and perhaps a port: no character that would be another part of one.
bool is_authority(std::string_view text) {
  const auto fits = [](char c) { return c > ' ' && c < 0x7f && std::string_view("/?#@\\\"<>^`{|},").find(c) == std::string_view::npos; };
  return !text.empty() && text.front() != ':' && std::all_of(text.begin(), text.end(), fits);
}

/// A time as HTTP says it: RFC 9110, section 5.6.7, whatever the locale.
std::string http_date(std::time_t time) {
  constexpr const char* days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm at{};
  ::gmtime_r(&time, &at);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", days[at.tm_wday], at.tm_mday, months[at.tm_mon], 1900 + at.tm_year,
                     at.tm_hour, at.tm_min, at.tm_sec);
}

/// The HTTP request of a newcomer, and the answer when that is not a WebSocket.
struct Request {
  Request(ByteStream bytes, const Limits& limits, HttpAccess allowed)
      : web(std::make_shared<Web>(std::move(bytes), limits)), access(std::move(allowed)), buffer(limits.request_head) {
    parser.header_limit(static_cast<std::uint32_t>(limits.request_head));
    parser.body_limit(0);
  }

  std::string_view field(http::field name) const {
    const auto found = parser.get().find(name);
    return found == parser.get().end() ? std::string_view() : std::string_view(found->value().data(), found->value().size());
  }

  // All lines of one name, which are one list.
  std::string list_field(http::field name) const {
    std::string all;
    const auto lines = parser.get().equal_range(name);
    for (auto line = lines.first; line != lines.second; ++line)
      all.append(all.empty() ? "" : ", ").append(line->value().data(), line->value().size());
    return all;
  }

  // Where the request goes. The absolute form, which proxies use, says the host as well, and then Host does not count.
  struct Target {
    std::string_view host, path;
  };
  Target target() const {
    const std::string_view said(parser.get().target().data(), parser.get().target().size());
    for (const std::string_view scheme : {"http://", "https://", "ws://", "wss://"}) {
      if (!beast::iequals(said.substr(0, scheme.size()), scheme)) continue;
      const std::string_view rest = said.substr(scheme.size());
      const std::size_t end = std::min(rest.find_first_of("/?"), rest.size());
      return {rest.substr(0, end), end < rest.size() && rest[end] == '/' ? rest.substr(end) : std::string_view("/")};
    }
    return {field(http::field::host), said};
  }

  // HTTP/1.1 takes one Host; browsers of 1.0 do not exist, and probes of 1.0 may leave it out.
  bool names_one_host() const {
    const auto& request = parser.get();
    const auto hosts = request.count(http::field::host);
    if (hosts == 0) return request.version() < 11;
    return hosts == 1 && (is_authority(field(http::field::host)) || field(http::field::host).empty()) &&
           (target().host.empty() || is_authority(target().host));
  }
  bool may_ask_for_pages() const {
    const std::string_view host = target().host;
    return host.empty() ? parser.get().version() < 11 : names_an_address(host);
  }
  bool has_key() const {
    const std::string_view key = field(http::field::sec_websocket_key);
    try {
      constexpr std::size_t letters = 24, bytes = 16;
      return key.size() == letters && from_base64(key).size() == bytes;
    } catch (const Error&) {
      return false;
    }
  }

  // The answer, if there is one. Every route is denied but those that are named.
  std::optional<HttpPage> page() const {
    const auto& request = parser.get();
    if (!names_one_host()) return refusal(http::status::bad_request);
    if (request.method() != http::verb::get && !is_head()) return refusal(http::status::method_not_allowed);
    const std::string_view path = target().path;
    if (access.only_pages && !may_ask_for_pages()) return refusal(http::status::forbidden);
    const bool is_route = !access.only_pages && (path == websocket_route || is_named(path));
    // A route that is named has a page at its address as well.
    if (!is_route || (path != websocket_route && !websocket::is_upgrade(request))) {
      std::optional<HttpPage> found;
      if (access.pages) found = (*access.pages)({path.substr(0, path.find('?')), has_token()});
      if (found || !is_route) return found ? std::move(found) : no_route();
    }
    if (request.count(http::field::origin) > 0 && !is_allowed(field(http::field::origin))) return refusal(http::status::forbidden);
    if (!websocket::is_upgrade(request)) return refusal(http::status::upgrade_required);
    if (field(http::field::sec_websocket_version) != "13") return refusal(http::status::upgrade_required);
    if (!has_key()) return refusal(http::status::bad_request);
    if (buffer.size() > 0) return refusal(http::status::bad_request);  // nothing may follow the request before its answer
    if (!has_token()) return refusal(http::status::unauthorized);
    return std::nullopt;
  }

  bool is_named(std::string_view target) const {
    return access.routes && target.starts_with('/') &&
           std::find(access.routes->begin(), access.routes->end(), target.substr(1)) != access.routes->end();
  }
  HttpPage no_route() const {
    HttpPage page = refusal(http::status::not_found);
    if (!access.routes || !has_token()) return page;
    page.body.pop_back();
    for (const std::string& name : *access.routes) page.body += ", /" + name;
    page.body += "\n";
    return page;
  }

  bool is_allowed(std::string_view origin) const {
    if (std::find(access.origins.begin(), access.origins.end(), origin) != access.origins.end()) return true;
    const std::string_view host = target().host;
    return access.pages && names_an_address(host) && origin == (access.encrypted ? "https://" : "http://") + std::string(host);
  }

  // The token of the header that programs set, or of the sub-protocols, the one field that a browser's script can set.
  std::string token() const {
    constexpr std::string_view bearer = "Bearer ", prefix = "bearer.";
    const std::string_view shown = field(http::field::authorization);
    if (beast::iequals(beast::string_view(shown.substr(0, bearer.size())), beast::string_view(bearer)))
      return std::string(shown.substr(bearer.size()));
    const std::string offered = list_field(http::field::sec_websocket_protocol);
    for (const beast::string_view one : http::token_list(offered))
      if (one.starts_with(beast::string_view(prefix))) return std::string(one.substr(prefix.size()));
    return {};
  }
  bool has_token() const { return !access.tokens || access.tokens->holds(token()); }
  bool offers_protocol() const {
    const std::string offered = list_field(http::field::sec_websocket_protocol);
    return http::token_list(offered).exists(websocket_protocol);
  }

  bool is_head() const { return parser.get().method() == http::verb::head; }

  HttpPage refusal(http::status status) const {
    HttpPage page;
    page.status = static_cast<int>(status);
    page.content_type = "text/plain";
    if (status == http::status::method_not_allowed) page.headers.emplace_back("Allow", "GET, HEAD");
    if (status == http::status::upgrade_required)
      page.headers.insert(page.headers.end(),
                          {{"Upgrade", "websocket"}, {"Sec-WebSocket-Version", "13"}, {"Connection", "upgrade, close"}});
    if (status == http::status::unauthorized) page.headers.emplace_back("WWW-Authenticate", "Bearer");
    page.body = access.only_pages ? fmt::format("millrace: {} {}\n", page.status, std::string(http::obsolete_reason(status)))
                                  : "millrace: a WebSocket is served at " + std::string(websocket_route) + "\n";
    return page;
  }

  void answer(HttpPage page) {
    response.result(static_cast<unsigned>(page.status));
    response.version(11);
    response.keep_alive(false);
    response.set(http::field::date, http_date(std::time(nullptr)));
    response.set(http::field::content_type, page.content_type);
    for (const auto& [name, value] : page.headers) response.set(name, value);
    response.body() = std::move(page.body);
    response.prepare_payload();
    if (is_head()) response.body().clear();  // the length of the body that a GET gets stays
  }

  std::shared_ptr<Web> web;
  HttpAccess access;
  beast::flat_buffer buffer;
  http::request_parser<http::empty_body> parser;
  http::response<http::string_body> response;
};

struct AcceptOp {
  std::shared_ptr<Request> request;
  enum { head, answered, accepted, closed } stage = head;
  error_code cause = ErrorCode::refused;

  template <class Self>
  void operator()(Self& self) {
    http::async_read_header(request->web->socket.next_layer(), request->buffer, request->parser, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, std::size_t) {
    auto& socket = request->web->socket;
    const bool unreadable = stage == head && error && error.category() == http::make_error_code(http::error::bad_version).category() &&
                            error != http::error::end_of_stream && error != http::error::partial_message;
    if (error && !unreadable) return self.complete(translate(error), Pointer());
    if (stage == answered) {
      stage = closed;
      return socket.next_layer().async_shut_down(std::move(self));
    }
    if (unreadable) cause = translate(error);
    std::optional<HttpPage> page = unreadable ? request->refusal(status_of(error)) : request->page();
    if (!page) {
      stage = accepted;
      if (const std::string_view path = request->target().path; path != websocket_route) request->web->route = path.substr(1);
      socket.set_option(websocket::stream_base::decorator([offered = request->offers_protocol()](websocket::response_type& response) {
        response.set(http::field::date, http_date(std::time(nullptr)));
        if (offered) response.set(http::field::sec_websocket_protocol, websocket_protocol);
      }));
      return socket.async_accept(request->parser.get(), std::move(self));
    }
    if (page->status < 400) cause = asio::error::eof;
    // A handshake that is broken is no matter of what is allowed.
    const bool broken = page->status == 400 || (page->status == 426 && websocket::is_upgrade(request->parser.get()));
    if (!unreadable && broken) cause = ErrorCode::bad_message;
    request->answer(*std::move(page));
    stage = answered;
    http::async_write(socket.next_layer(), request->response, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error) {
    if (stage == closed) return self.complete(cause, Pointer());
    if (error) return self.complete(translate(error), Pointer());
    self.complete(error_code(), std::make_unique<WebStream>(request->web));
  }
};

struct ConnectOp {
  std::shared_ptr<Web> web;
  std::string host;
  std::string path;

  template <class Self>
  void operator()(Self& self) {
    const std::string to_host = host, to_path = path;  // this op moves away with self
    web->socket.async_handshake(to_host, to_path, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error) {
    if (error) return self.complete(translate(error), Pointer());
    self.complete(error_code(), std::make_unique<WebStream>(web));
  }
};

}  // namespace

void accept_websocket(ByteStream bytes, const Limits& limits, HttpAccess access, MessageStreamHandler handler) {
  AcceptOp op{std::make_shared<Request>(std::move(bytes), limits, std::move(access))};
  auto executor = op.request->web->socket.get_executor();
  launch(std::move(op), std::move(handler), executor);
}

void connect_websocket(ByteStream bytes, const Limits& limits, std::string host, std::string path, std::string token,
                       MessageStreamHandler handler) {
  ConnectOp op{std::make_shared<Web>(std::move(bytes), limits), std::move(host), std::move(path)};
  if (!token.empty())
    op.web->socket.set_option(websocket::stream_base::decorator(
        [shown = "Bearer " + token](websocket::request_type& request) { request.set(http::field::authorization, shown); }));
  auto executor = op.web->socket.get_executor();
  launch(std::move(op), std::move(handler), executor);
}

}  // namespace millrace
