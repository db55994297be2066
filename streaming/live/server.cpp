// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/server.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/live/live_place.h>
#include <millrace/streaming/live/session.h>
#include <millrace/streaming/transport/connection.h>
#include <millrace/streaming/transport/listener.h>
#include <millrace/streaming/transport/wire_error.h>

namespace millrace {
namespace {

constexpr std::uint32_t retry_when_full_ms = 1000;
constexpr std::size_t most_at_once = 16384;  // bytes of replies that are written as one piece, but for the last of them

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "its work failed";
  }
}

}  // namespace

/// What the pending operations share with the server.
class Server::State final : public std::enable_shared_from_this<Server::State>, public BatcherChoice {
 public:
  class Connection;

  State(asio::io_context& context, std::shared_ptr<const ServedModel> model, ServerOptions options);

  void listen();
  void accept();
  void drain();
  void pump();
  void pump_soon();
  void closed(const std::shared_ptr<Connection>& connection);
  void shut_down() noexcept;
  Batcher& choose() override;

  asio::io_context& context;
  std::shared_ptr<const ServedModel> model;
  ServerOptions options;
  Listener listener;
  std::vector<std::shared_ptr<LivePlace>> places;
  std::set<std::shared_ptr<Connection>> connections;
  std::map<std::string, std::size_t> by_address;
  std::function<void()> stopped;
  std::function<void(const std::string& why, std::size_t sessions, std::size_t left)> lost;
  bool draining = false;

 private:
  void admit(asio::ip::tcp::socket socket);
  void lost_place(const LivePlace& gone);
  void finish_drain();

  asio::steady_timer drain_timer_;
  bool told_ = false;
};

/// One client: reads while its session wants input, writes what the session says: what waits, and what is about to come, as one piece.
class Server::State::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<State> server, std::string address)
      : address(std::move(address)),
        server_(std::move(server)),
        session_(server_->model, *server_, server_->options.limits),
        timer_(server_->context) {
    session_.on_change = [this] {
      write();
      read();
    };
  }

  void begin(asio::ip::tcp::socket socket) {
    AcceptOptions accept;
    accept.limits = server_->options.limits;
    accept.origins = server_->options.origins;
    // The time for the start is counted from here: what the handshake took is gone from it.
    deadline_ = Clock::now() + accept.limits.handshake;
    auto accepted = [self = shared_from_this()](error_code error, std::unique_ptr<MessageStream> stream) {
      if (error || self->closed_) return self->close_now();
      self->stream_ = std::move(stream);
      self->watch();
      if (self->server_->draining)
        self->refuse(ErrorCode::draining, "the server is going away", {});
      else if (self->refusal_)
        self->refuse(self->refusal_->first, self->refusal_->second, retry_when_full_ms);
      self->read();
      self->write();
    };
    async_accept_stream(std::move(socket), accept, asio::bind_cancellation_slot(accepting_.slot(), std::move(accepted)));
  }
  /// Tells the client so, once it can be told.
  void refuse_later(ErrorCode code, std::string why) { refusal_.emplace(code, std::move(why)); }
  void refuse(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry) {
    session_.refuse(code, why, retry);
    write();
  }
  void close_now() {
    if (closed_) return;
    closed_ = true;
    session_.abandon();
    if (stream_)
      stream_->abort();
    else
      accepting_.emit(asio::cancellation_type::terminal);
    timer_.cancel();
    server_->closed(shared_from_this());
  }
  /// The server goes away: who is still shaking hands was promised nothing and cannot be told.
  void dismiss() {
    if (!stream_) return close_now();
    refuse(ErrorCode::draining, "the server is going away", {});
  }
  /// Whether its session may still get steps that it did not answer.
  bool started() const noexcept { return session_.started(); }

  const std::string address;

 private:
  using Clock = std::chrono::steady_clock;

  void read() {
    if (reading_ || closed_ || !stream_ || server_->draining || !session_.wants_input()) return;
    reading_ = true;
    stream_->async_read([self = shared_from_this()](error_code error, Message message) {
      self->reading_ = false;
      self->received(error, std::move(message));
    });
  }
  void received(error_code error, Message message) {
    if (closed_) return;
    if (error && session_.over()) return;
    if (error) {
      // What breaks the protocol is answered; a client that is gone is not.
      if (const std::optional<ErrorCode> broken = wire_error(error)) return refuse(*broken, what_broke(error), {});
      return close_now();
    }
    deadline_ = Clock::now() + server_->options.limits.idle;
    session_.receive(std::move(message));
    server_->pump_soon();
    read();
  }

  std::string what_broke(error_code error) const {
    if (wire_error(error) != ErrorCode::too_big) return error.message();
    return fmt::format("expected messages of at most {} bytes, found a longer one", server_->options.limits.message);
  }

  void write() {
    if (writing_ || closed_ || !stream_) return;
    if (!session_.has_output()) {
      if (session_.over()) finish();
      return;
    }
    if (session_.about_to_say_more()) return;
    writing_ = true;
    written_by_ = Clock::now() + server_->options.limits.stuck_writer;
    watch();
    std::vector<Message> messages;
    std::size_t bytes = 0;
    while (session_.has_output() && bytes < most_at_once) {
      messages.push_back(session_.take_output());
      bytes += messages.back().payload.size();
    }
    auto done = [self = shared_from_this(), bytes](error_code error) { self->written(error, bytes); };
    if (messages.size() == 1)
      stream_->async_write(std::move(messages.front()), std::move(done));
    else
      stream_->async_write_all(std::move(messages), std::move(done));
  }
  void written(error_code error, std::size_t bytes) {
    writing_ = false;
    if (closed_) return;
    if (error) return close_now();
    session_.written(bytes);
    server_->pump();
    read();
    write();
  }
  void finish() {
    if (closing_) return;
    closing_ = true;
    stream_->async_close(session_.close_code(), [self = shared_from_this()](error_code) { self->close_now(); });
  }

  /// One timer for the deadlines of reading and writing: it fires at the earlier, and is set again when that has moved.
  void watch() {
    const auto next = writing_ ? std::min(deadline_, written_by_) : deadline_;
    if (closed_ || (armed_ && timer_.expiry() <= next)) return;
    armed_ = true;
    timer_.expires_at(next);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error || self->closed_) return;
      self->armed_ = false;
      self->check_deadlines();
    });
  }
  void check_deadlines() {
    const auto now = Clock::now();
    if (writing_ && now >= written_by_) return close_now();
    if (now >= deadline_ && session_.wants_input() && !session_.over()) {
      refuse(ErrorCode::idle, session_.started() ? "nothing arrived for too long" : "expected start within the time for it", {});
      deadline_ = now + server_->options.limits.stuck_writer;
    } else if (now >= deadline_ && session_.over()) {
      return close_now();
    } else if (now >= deadline_) {
      deadline_ = now + server_->options.limits.idle;
    }
    watch();
  }

  std::shared_ptr<State> server_;
  Session session_;
  std::unique_ptr<MessageStream> stream_;
  asio::steady_timer timer_;
  asio::cancellation_signal accepting_;  // until there is a stream
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point written_by_ = Clock::time_point::max();
  std::optional<std::pair<ErrorCode, std::string>> refusal_;
  bool armed_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool closing_ = false;
  bool closed_ = false;
};

Server::State::State(asio::io_context& on, std::shared_ptr<const ServedModel> served, ServerOptions given)
    : context(on),
      model(std::move(served)),
      options(std::move(given)),
      listener(context.get_executor(), options.address, options.port),
      drain_timer_(context) {
  if (options.devices.empty()) options.devices.push_back(make_cpu_device());
  for (const auto& device : options.devices) {
    LivePlace::Options own;
    own.device = device;
    own.backend = options.backend;
    own.max_rows = options.max_rows;
    own.tracer = options.tracer;
    places.push_back(std::make_shared<LivePlace>(context, model->recurrence(), std::move(own)));
  }
}

void Server::State::listen() {
  for (const auto& place : places) {
    place->on_idle = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->pump();
    };
    place->on_lost = [weak = weak_from_this(), gone = place.get()] {
      if (const auto self = weak.lock()) self->lost_place(*gone);
    };
  }
  accept();
}

/// Where a session begins: on the place with the fewest that is not lost.
Batcher& Server::State::choose() {
  LivePlace* found = nullptr;
  for (const auto& place : places)
    if (!place->lost() && (found == nullptr || place->batcher().live() < found->batcher().live())) found = place.get();
  if (found == nullptr) throw ProtocolError(ErrorCode::lost, fmt::format("no place is left: {}", text_of(places.front()->lost())));
  return found->batcher();
}

void Server::State::lost_place(const LivePlace& gone) {
  for (const auto& place : places) place->check();  // one that goes may take others along
  const auto left = std::count_if(places.begin(), places.end(), [](const auto& place) { return !place->lost(); });
  if (lost) lost(text_of(gone.lost()), gone.told(), static_cast<std::size_t>(left));
}

void Server::State::accept() {
  listener.async_accept(asio::bind_executor(context, [self = shared_from_this()](error_code error, asio::ip::tcp::socket socket) {
    if (error) return;  // closed: the listener itself waits out what passes
    self->admit(std::move(socket));
    self->accept();
  }));
}

void Server::State::admit(asio::ip::tcp::socket socket) {
  error_code error;
  const auto peer = socket.remote_endpoint(error);
  if (error) return;
  const std::string address = peer.address().to_string();
  auto connection = std::make_shared<Connection>(shared_from_this(), address);
  if (connections.size() >= options.limits.sessions)
    connection->refuse_later(ErrorCode::overload,
                             fmt::format("{} sessions are live, the most that this server takes", options.limits.sessions));
  else if (!peer.address().is_loopback() && by_address[address] >= options.limits.sessions_per_address)
    connection->refuse_later(ErrorCode::overload, fmt::format("{} sessions of this address are live, the most that this server takes",
                                                              options.limits.sessions_per_address));
  connections.insert(connection);
  ++by_address[address];
  connection->begin(std::move(socket));
}

void Server::State::closed(const std::shared_ptr<Connection>& connection) {
  if (connections.erase(connection) == 0) return;
  if (--by_address[connection->address] == 0) by_address.erase(connection->address);
  if (draining && connections.empty()) {
    drain_timer_.cancel();
    asio::post(context, [self = shared_from_this()] {
      if (self->stopped) self->stopped();
    });
  }
}

void Server::State::pump_soon() {
  for (const auto& place : places) place->pump_soon();
  if (draining) pump();
}

void Server::State::pump() {
  for (const auto& place : places) place->pump();
  if (draining) finish_drain();
}

void Server::State::drain() {
  if (draining) return shut_down();
  draining = true;
  listener.close();
  drain_timer_.expires_after(options.drain_limit);
  drain_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->shut_down();
  });
  if (connections.empty()) {
    drain_timer_.cancel();
    if (stopped) asio::post(context, stopped);
    return;
  }
  pump();
}

/// Everything that arrived has been answered: the sessions are told.
void Server::State::finish_drain() {
  if (told_ || std::any_of(places.begin(), places.end(), [](const auto& place) { return !place->idle(); })) return;
  told_ = true;
  const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& connection : all) connection->dismiss();
}

void Server::State::shut_down() noexcept {
  listener.close();
  const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& connection : all) connection->close_now();
}

Server::Server(asio::io_context& context, std::shared_ptr<const ServedModel> model, ServerOptions options)
    : state_(std::make_shared<State>(context, std::move(model), std::move(options))) {
  state_->stopped = [this] {
    if (on_stopped) on_stopped();
  };
  state_->lost = [this](const std::string& why, std::size_t sessions, std::size_t left) {
    if (on_lost) on_lost(why, sessions, left);
  };
  state_->listen();
}

Server::~Server() {
  state_->stopped = nullptr;
  state_->lost = nullptr;
  state_->shut_down();
}

std::string Server::address() const { return state_->listener.address(); }
std::uint16_t Server::port() const { return state_->listener.port(); }
void Server::drain() { state_->drain(); }
std::size_t Server::live_sessions() const noexcept {
  std::size_t all = 0;
  for (const auto& place : state_->places) all += place->batcher().live();
  return all;
}

Batcher::Stats Server::stats() const noexcept {
  Batcher::Stats all;
  for (const auto& place : state_->places) {
    const Batcher::Stats& one = place->batcher().stats();
    all.ticks += one.ticks;
    all.rows += one.rows;
    all.largest = std::max(all.largest, one.largest);
  }
  return all;
}

std::vector<Server::PlaceStats> Server::places() const {
  std::vector<PlaceStats> all;
  for (const auto& place : state_->places)
    all.push_back({place->place(), place->batcher().stats(), place->batcher().live(), place->lost() ? text_of(place->lost()) : ""});
  return all;
}

std::string Server::backend() const { return state_->places.front()->backend(); }

}  // namespace millrace
