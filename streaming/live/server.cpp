// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/server.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <time.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/streaming/live/crowds.h>
#include <millrace/streaming/live/live_learner.h>
#include <millrace/streaming/live/served_place.h>
#include <millrace/streaming/live/session.h>
#include <millrace/streaming/live/ticket.h>
#include <millrace/streaming/protocol/frame.h>
#include <millrace/streaming/transport/connection.h>
#include <millrace/streaming/transport/listener.h>
#include <millrace/streaming/transport/wire_error.h>
#include <millrace/tensor/work_failure.h>

namespace millrace {
namespace {

constexpr std::uint32_t retry_when_full_ms = 1000;
constexpr std::chrono::milliseconds time_for_those_ahead{2};  // of a tick
constexpr std::size_t most_accepted = 32;                     // connections of one turn of the sockets
constexpr std::size_t most_at_once = 16384;                   // bytes of replies that are written as one piece, but for the last of them

/// Calls a copy of a handler, where there is one: the call may destroy the handler with its server.
template <class Handler, class... Args>
void call_copy(const Handler& handler, const Args&... args) {
  const Handler copy = handler;
  if (copy) copy(args...);
}

/// A client that comes over IPv4 to a socket of IPv6 has its own address.
asio::ip::address plain(const asio::ip::address& peer) {
  if (!peer.is_v6() || !peer.to_v6().is_v4_mapped()) return peer;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, peer.to_v6());
}

/// The addresses that count as one peer: an address of IPv4, and of IPv6 the network of 64 bits, which one subscriber owns whole.
std::string counted_as(const asio::ip::address& peer) {
  if (!peer.is_v6() || peer.is_loopback()) return peer.to_string();
  asio::ip::address_v6::bytes_type bytes = peer.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), std::uint8_t{0});
  return asio::ip::make_address_v6(bytes, peer.to_v6().scope_id()).to_string() + "/64";
}

Listener::Reach reach_of(const ServerOptions& options) {
  return options.insecure || (options.tls && options.tokens) ? Listener::Reach::any : Listener::Reach::loopback;
}

// The answers to a newcomer for whom there is no descriptor.
constexpr const char* no_descriptor = "no descriptor is left for another connection";

std::string refusal_over_http() {
  return fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
      "Content-Length: {}\r\n\r\n{}\n",
      std::string_view(no_descriptor).size() + 1, no_descriptor);
}
std::string refusal_over_tcp() {
  return encode_frame(text_message(to_json(ErrorMessage{ErrorCode::overload, no_descriptor, retry_when_full_ms, {}})));
}

Admission::Options admission_of(const ServedRoute& route) {
  Admission::Options own = route.admission;
  if (own.session_rate <= 0 && route.model->config().audio) own.session_rate = 1 / route.model->config().audio->step_seconds();
  return own;
}

void add(Batcher::Stats& all, const Batcher::Stats& one) noexcept {
  all.ticks += one.ticks;
  all.rows += one.rows;
  all.largest = std::max(all.largest, one.largest);
}

/// Processor time of the calling thread.
double processor_seconds() noexcept {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

}  // namespace

/// The state that the pending operations share with the server.
class Server::State final : public std::enable_shared_from_this<Server::State> {
 public:
  class Connection;

  /// A model with what is its own.
  struct Route {
    std::string name;
    std::shared_ptr<const ServedModel> model;
    Admission admission;
    std::vector<std::shared_ptr<ServedPlace>> places{};  // in the order of the devices
    std::unique_ptr<const StateSeal> seal{};             // null: why_no_seal
    std::string why_no_seal{};
    const std::shared_ptr<ModelCounts> counts = std::make_shared<ModelCounts>();
    std::size_t sessions = 0;
    double transport_seconds = 0;  // of the thread of the sockets, for its steps
    // Each session that learns has weights, and so a place, of its own.
    std::set<std::shared_ptr<ServedPlace>> learners{};
    Batcher::Stats learned{};          // of those that are gone
    double learned_seconds_a_row = 0;  // of the last of them that stepped

    Batcher::Stats stats() const noexcept {
      Batcher::Stats all = learned;
      for (const auto& place : places) add(all, place->batcher().stats());
      for (const auto& learner : learners) add(all, learner->batcher().stats());
      return all;
    }
  };

  State(asio::io_context& context, std::vector<ServedRoute> routes, ServerOptions options);

  void listen();
  void accept();
  template <class Carrier>
  void admit(Carrier carrier, const asio::ip::address& peer);
  bool make_room();
  void drain();
  void pump();
  void hold_ended(Connection& connection);
  Connection& holder_of(std::string_view ticket) const;
  void pump_soon();
  void closed(const std::shared_ptr<Connection>& connection);
  void shut_down() noexcept;
  Batcher& place_for(Connection& connection);
  std::shared_ptr<ServedPlace> make_learner(Route& route);
  Batcher::Stats stats() const noexcept {
    Batcher::Stats all;
    for (const auto& route : routes) add(all, route->stats());
    return all;
  }
  void check_room(const Connection& connection);
  void observe();
  Route* route_named(std::string_view name) noexcept;
  double used_beside(const Route* own) const noexcept;
  std::size_t most_newcomers() const noexcept {
    return options.limits.newcomers > 0 ? options.limits.newcomers : std::max<std::size_t>(options.limits.sessions, 256);
  }

  asio::io_context& context;
  ServerOptions options;
  Listener listener;
  std::vector<std::unique_ptr<Route>> routes;  // the first is the default
  std::shared_ptr<const std::vector<std::string>> names;
  std::vector<std::shared_ptr<ServedPlace>> places;  // of all routes
  std::size_t most_state_bytes = 0;
  std::set<std::shared_ptr<Connection>> connections;
  Crowds<Connection> newcomers;
  Crowds<Connection> leaving;  // told why they go, or that all is done, and not closed yet
  std::uint64_t last_leaving = 0;
  std::set<Connection*> sessions;                 // those that have started and are not over
  std::map<std::string, std::size_t> by_address;  // sessions
  std::map<std::string, Connection*, std::less<>> tickets;
  std::map<std::uint64_t, Connection*> ended;  // without a connection, their clients may lack the end of them; by number: the oldest first
  const std::shared_ptr<ServerCounts> counts = std::make_shared<ServerCounts>();
  std::function<void()> stopped;
  std::function<void(const std::string& why, std::size_t sessions, std::size_t left)> lost;
  std::function<void(const SessionEnd&)> session_ended;
  bool draining = false;

 private:
  void add_route(ServedRoute given, const std::vector<std::shared_ptr<ThreadExecutor>>& workers);
  void connect(ServedPlace& place);
  void make_seal(Route& route);
  void count_waiting_rows();
  void lost_place(const LivePlace& gone);

  asio::steady_timer drain_timer_;
  std::shared_ptr<ThreadExecutor> learning_;  // for the ticks of all learners, so that updates keep nobody else waiting
  std::uint64_t last_number_ = 0;
  std::size_t most_connections_ = std::numeric_limits<std::size_t>::max();  // of which the last one was near the limit of descriptors
  std::size_t waiting_rows_ = 0;                                            // as they were counted last
  double backlog_seconds_ = 0;                                              // that they take
  std::chrono::steady_clock::time_point counted_at_{};
  std::uint64_t steps_seen_ = 0;  // by admission
  std::optional<double> seconds_seen_;
};

/// One client: reads while its session wants input, writes what the session says: what waits, and what is about to come, as one piece.
class Server::State::Connection final : public std::enable_shared_from_this<Connection>, private SessionHost {
 public:
  Connection(std::shared_ptr<State> server, std::uint64_t its_number, const asio::ip::address& peer)
      : number(its_number),
        address(peer.to_string()),
        counted_by(counted_as(peer)),
        is_loopback(peer.is_loopback()),
        server_(std::move(server)),
        route_(server_->routes.front().get()),
        session_(static_cast<SessionHost&>(*this), server_->options.limits),
        timer_(server_->context) {
    session_.on_change = [this] {
      attempt([this] {
        write();
        read();
      });
    };
  }

  /// `carrier`: a socket, or a ByteStream.
  template <class Carrier>
  void begin(Carrier carrier) {
    AcceptOptions accept;
    accept.limits = server_->options.limits;
    accept.origins = server_->options.origins;
    accept.tls = server_->options.tls;
    accept.tokens = server_->options.tokens;
    accept.pages = server_->options.pages;
    accept.routes = server_->names;
    // The handshake has a limit of its own, and is over by then.
    deadline_ = begun_ + accept.limits.handshake + std::chrono::seconds(1);
    watch();
    auto accepted = handler([](Connection& self, error_code error, std::unique_ptr<MessageStream> stream) {
      if (error) self.count_refusal(error);
      if (error || self.closed_) return self.close_now();
      self.stream_ = std::move(stream);
      if (const std::string_view asked = self.stream_->route(); !asked.empty()) {
        self.by_address_ = true;
        self.route_ = self.server_->route_named(asked);
      }
      self.stream_->limit(self.session_.most_start_bytes(), self.session_.most_start_bytes());
      // The time for the start is counted from the connection: the handshake takes its part of it.
      self.deadline_ = self.begun_ + self.server_->options.limits.handshake;
      self.watch();
      if (self.server_->draining) self.refuse(ErrorCode::draining, "the server is going away", {});
      self.read();
      self.write();
    });
    async_accept_stream(std::move(carrier), accept, asio::bind_cancellation_slot(accepting_.slot(), std::move(accepted)));
  }
  /// Makes room for those who are behind it.
  void displace(const std::string& why, bool at_once) {
    if (stream_) attempt([&] { refuse(ErrorCode::overload, why, retry_when_full_ms); });
    if (at_once || !stream_) close_now();
  }
  void refuse(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry) {
    session_.refuse(code, why, retry);
    write();
  }
  void close_now() {
    if (closed_) return;
    if (stream_)
      stream_->abort();
    else
      accepting_.emit(asio::cancellation_type::terminal);
    let_go();
  }
  /// The server goes away: a peer in its handshake was promised nothing and cannot be told, nor can a session without a connection.
  void dismiss() {
    if (!stream_ || parked_) return close_now();
    attempt([this] {
      session_.drain();
      write();
    });
  }
  /// Another connection takes the place of the one that was lost, or is not known yet to be.
  void adopt(std::unique_ptr<MessageStream> stream, std::uint64_t acknowledged) {
    attempt([&] {
      handover_ = std::make_unique<Handover>(Handover{std::move(stream), acknowledged, nullptr});
      parked_ = true;
      stream_->abort();
      take_over();
    });
  }
  Server::SessionInfo info() const {
    Server::SessionInfo info;
    info.number = number;
    info.address = address;
    info.label = session_.label();
    info.model = route_->name;
    info.steps = session_.steps();
    info.waiting_rows = session_.waiting_rows();
    info.seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    return info;
  }
  /// Whether its session may still get steps that it did not answer.
  bool started() const noexcept { return session_.started(); }
  State::Route& route() const noexcept { return *route_; }
  /// Its session learns there, alone.
  Batcher& learn_at(std::shared_ptr<ServedPlace> learner) {
    learner_ = std::move(learner);
    return learner_->batcher();
  }
  std::size_t waiting_rows() const noexcept { return session_.waiting_rows(); }
  bool held_up() const noexcept { return session_.held_up(); }

  const std::uint64_t number;
  const std::string address;
  const std::string counted_by;
  const bool is_loopback;

 private:
  using Clock = std::chrono::steady_clock;

  /// A connection on its way from one session to another: the stream, at the one that gets it; who that is, at the one that gives it.
  struct Handover {
    std::unique_ptr<MessageStream> stream;
    std::uint64_t acknowledged = 0;
    std::shared_ptr<Connection> to;
  };

  std::shared_ptr<const ServedModel> model_named(const std::string& name) override;
  std::string model_name() const override { return server_->routes.size() > 1 ? route_->name : std::string(); }
  Batcher& choose() override { return server_->place_for(*this); }
  std::string new_ticket() const override;
  void issue_ticket(const std::string& ticket) override { server_->tickets.emplace(ticket, this); }
  void resume(const std::string& ticket, std::uint64_t acknowledged) override;
  /// A completion handler, which does `work(*this, results…)` as `attempt` does. One that is destroyed and not called tells so: its operation threw.
  template <class Work>
  class Handler {
   public:
    Handler(std::shared_ptr<Connection> of, Work work) : connection_(std::move(of)), work_(std::move(work)) {}
    Handler(Handler&&) noexcept = default;
    Handler(const Handler&) = delete;
    ~Handler() {
      if (connection_) connection_->break_soon();
    }
    template <class... Results>
    void operator()(Results... results) {
      const std::shared_ptr<Connection> self = std::move(connection_);
      self->attempt([&] { work_(*self, std::move(results)...); });
    }

   private:
    std::shared_ptr<Connection> connection_;
    Work work_;
  };
  template <class Work>
  Handler<Work> handler(Work work) {
    return Handler<Work>(shared_from_this(), std::move(work));
  }
  /// A part of the connection's work. An exception, such as memory that ran out, costs this connection and nobody else.
  template <class Work>
  void attempt(Work work) {
    try {
      work();
    } catch (const std::exception&) {
      break_soon();
    }
  }
  /// The connection ends when nothing of it is on the stack: the timer, which always waits, says when. Takes no memory.
  void break_soon() noexcept {
    broken_ = true;
    timer_.cancel();
  }
  void leave_behind_others() {
    server_->leaving.remove(counted_by, leaving_number_);  // a session that was over already, and is resumed
    leaving_number_ = ++server_->last_leaving;
    server_->leaving.add(counted_by, leaving_number_, this);
  }
  void break_off() {
    session_.fail();
    close_now();
  }
  void let_go();
  void lose_connection();
  void hand_over();
  void take_over();
  void close_finished(error_code error);
  const StateSeal* seal() const noexcept override { return route_->seal.get(); }
  std::string why_no_seal() const override { return route_->why_no_seal; }
  std::size_t most_state_bytes() const noexcept override { return server_->most_state_bytes; }

  /// Counts the connection where it belongs among the server's: as a newcomer, then as a session, then as one on its way out.
  void account() {
    if (!counted_ && session_.started()) {
      std::size_t& of_address = server_->by_address[counted_by];
      server_->sessions.insert(this);
      // No line below this one throws.
      counted_ = true;
      ++of_address;
      ++route_->counts->sessions;
      ++route_->sessions;
      deadline_ = Clock::now() + server_->options.limits.idle;
      server_->newcomers.remove(counted_by, number);
      stream_->limit(server_->options.limits.message, server_->options.limits.control);
    }
    if (ended_ || !session_.over()) return;
    ended_ = true;
    (session_.started() ? route_->counts->ended : server_->counts->refused).add(outcome());
    server_->newcomers.remove(counted_by, number);
    if (server_->sessions.erase(this) > 0) {
      --route_->sessions;
      if (--server_->by_address[counted_by] == 0) server_->by_address.erase(counted_by);
    }
    if (route_->learners.erase(learner_) > 0) {
      add(route_->learned, learner_->batcher().stats());
      if (learner_->seconds_a_row() > 0) route_->learned_seconds_a_row = learner_->seconds_a_row();
    }
    if (!parked_) deadline_ = Clock::now() + server_->options.limits.stuck_writer;
    watch();
    try {
      tell_end();
    } catch (const std::bad_alloc&) {  // a line of the log less
    }
    if (closed_ || parked_) return;
    leave_behind_others();
    if (server_->leaving.size() > server_->most_newcomers()) server_->leaving.first_to_go().close_now();
  }
  std::string_view outcome() const { return refused_ ? name_of(ErrorCode::refused) : session_.outcome(); }
  void count_refusal(error_code error) {
    ServerCounts& all = *server_->counts;
    refused_ = error != asio::error::eof && wire_error(error) == ErrorCode::refused;
    if (error == asio::error::eof)
      ++all.pages;
    else if (refused_)
      ++all.refused_requests;
    else
      ++all.failed_handshakes;
  }
  /// Data that arrives while nothing of the session waits begins a response; what it said before brought none about. Once it is the client's turn again, none is due.
  void count_received(const Message& message) {
    ServerCounts& all = *server_->counts;
    ++all.messages_in;
    all.bytes_in += message.payload.size();
    if (message.kind == MessageKind::binary && (asked_at_ == Clock::time_point() || session_.waiting_rows() == 0)) asked_at_ = Clock::now();
  }
  void forget_response() noexcept {
    if (session_.awaits_client()) asked_at_ = {};
  }
  void count_written(std::size_t messages, std::size_t bytes) {
    ServerCounts& all = *server_->counts;
    all.messages_out += messages;
    all.bytes_out += bytes;
    if (const auto since = std::exchange(asked_at_, {}); since != Clock::time_point())
      route_->counts->response_seconds.observe(std::chrono::duration<double>(Clock::now() - since).count());
  }
  void tell_end() const {
    const bool silent = !session_.started() && outcome() == "gone";
    if (!server_->session_ended || silent) return;
    SessionEnd end;
    end.number = number;
    end.address = address;
    end.label = session_.label();
    if (session_.started()) end.model = route_->name;
    end.outcome = outcome();
    end.why = refused_ ? make_error_code(ErrorCode::refused).message() : session_.why();
    end.steps = session_.steps();
    end.seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    end.started = session_.started();
    call_copy(server_->session_ended, end);
  }

  void read() {
    if (reading_ || closed_ || broken_ || parked_ || !stream_ || server_->draining || !session_.wants_input()) return;
    reading_ = true;
    stream_->async_read(handler([](Connection& self, error_code error, Message message) {
      self.reading_ = false;
      self.received(error, std::move(message));
    }));
  }
  void received(error_code error, Message message) {
    if (closed_) return;
    if (parked_) return take_over();
    if (error && session_.over()) return;
    if (error) {
      // A breach of the protocol is answered; a client that is gone is not.
      if (const std::optional<ErrorCode> broken = wire_error(error))
        return refuse(*broken, what_broke(error), *broken == ErrorCode::overload ? std::optional(retry_when_full_ms) : std::nullopt);
      return lose_connection();
    }
    count_received(message);
    const bool said_something = session_.receive(std::move(message));
    if (handover_) return hand_over();
    account();
    forget_response();
    if (said_something && !session_.over()) deadline_ = Clock::now() + server_->options.limits.idle;
    server_->pump_soon();
    read();
  }

  std::string what_broke(error_code error) const {
    if (wire_error(error) == ErrorCode::overload) return "no memory is left for a message that arrives";
    if (wire_error(error) != ErrorCode::too_big) return error.message();
    const Limits& limits = server_->options.limits;
    if (!session_.started())
      return fmt::format("expected a start of at most {} bytes, found a longer message", session_.most_start_bytes());
    return fmt::format("expected messages of at most {} bytes, {} of them text, found a longer one", limits.message, limits.control);
  }

  void write() {
    account();
    if (writing_ || closed_ || broken_ || parked_ || !stream_) return;
    if (!session_.has_output()) {
      forget_response();
      if (session_.over()) finish();
      return;
    }
    if (session_.about_to_say_more()) return;
    writing_ = true;
    written_by_ = Clock::now() + server_->options.limits.stuck_writer;
    watch();
    Message first = session_.take_output();
    std::size_t bytes = first.payload.size();
    std::vector<Message> messages;  // where there are several
    while (session_.has_output() && bytes < most_at_once) {
      if (messages.empty()) messages.push_back(std::exchange(first, {}));
      messages.push_back(session_.take_output());
      bytes += messages.back().payload.size();
    }
    count_written(std::max<std::size_t>(messages.size(), 1), bytes);
    auto done = handler([bytes](Connection& self, error_code error) { self.written(error, bytes); });
    if (messages.empty())
      stream_->async_write(std::move(first), std::move(done));
    else
      stream_->async_write_all(std::move(messages), std::move(done));
  }
  void written(error_code error, std::size_t bytes) {
    writing_ = false;
    if (closed_) return;
    if (parked_) return take_over();
    if (error) return lose_connection();
    session_.written(bytes);
    server_->pump();
    read();
    write();
  }
  void finish() {
    if (closing_) return;
    closing_ = true;
    stream_->async_close(session_.close_code(), handler([](Connection& self, error_code error) { self.close_finished(error); }));
  }

  /// One timer for the deadlines of reading and writing: it fires at the earlier, and is set again when that has moved.
  void watch() {
    const auto next = writing_ ? std::min(deadline_, written_by_) : deadline_;
    if (closed_ || (armed_ && timer_.expiry() <= next)) return;
    armed_ = true;
    timer_.expires_at(next);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (self->closed_ || (error && !self->broken_)) return;
      self->armed_ = false;
      if (!self->broken_) self->attempt([&] { self->check_deadlines(); });
      if (self->broken_) self->break_off();
    });
  }
  void check_deadlines() {
    const auto now = Clock::now();
    if (parked_ || !stream_) return now >= deadline_ ? close_now() : watch();
    if (session_.started() && !session_.over()) deadline_ = std::max(deadline_, stream_->last_ping() + server_->options.limits.idle);
    if (writing_ && now >= written_by_) {
      if (session_.over()) return close_now();
      // A reader that goes on within the same time again finds out why it was left.
      refuse(ErrorCode::slow_reader, "a reply was not read in time", {});
      written_by_ = deadline_;
    }
    if (now >= deadline_ && session_.wants_input() && !session_.over()) {
      refuse(ErrorCode::idle, session_.started() ? "nothing arrived for too long" : "expected start within the time for it", {});
    } else if (now >= deadline_ && session_.over()) {
      return close_now();
    } else if (now >= deadline_) {
      deadline_ = now + server_->options.limits.idle;
    }
    watch();
  }

  std::shared_ptr<State> server_;
  State::Route* route_;  // the default until another is asked for
  std::shared_ptr<ServedPlace> learner_;
  Session session_;
  std::unique_ptr<MessageStream> stream_;
  asio::steady_timer timer_;
  asio::cancellation_signal accepting_;  // until there is a stream
  std::unique_ptr<Handover> handover_;
  std::uint64_t leaving_number_ = 0;  // among those that leave
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point written_by_ = Clock::time_point::max();
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point asked_at_{};  // the epoch while no response is due
  bool by_address_ = false;       // the address says which route
  bool counted_ = false;          // it was a session
  bool ended_ = false;
  bool armed_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool closing_ = false;
  bool closed_ = false;
  bool broken_ = false;   // an operation of it threw
  bool refused_ = false;  // for its token, origin or route
  bool parked_ = false;   // its connection is lost, and its session waits for another
};

/// The session is over, and nothing of the connection is used again.
void Server::State::Connection::let_go() {
  const auto self = shared_from_this();
  closed_ = true;
  if (const auto held = server_->tickets.find(session_.ticket()); held != server_->tickets.end()) server_->tickets.erase(held);
  server_->ended.erase(number);
  server_->leaving.remove(counted_by, leaving_number_);
  session_.abandon();
  try {
    account();
  } catch (const std::exception&) {  // it is counted nowhere
  }
  server_->newcomers.remove(counted_by, number);
  timer_.cancel();
  server_->closed(shared_from_this());
}

// ---- Models ----

std::shared_ptr<const ServedModel> Server::State::Connection::model_named(const std::string& name) {
  if (name.empty()) return route_->model;
  State::Route* const found = server_->route_named(name);
  if (found == nullptr)
    throw ProtocolError(ErrorCode::unknown_model,
                        fmt::format("start.model: expected {}, found '{}'", fmt::join(*server_->names, ", "), name));
  if (by_address_ && found != route_)
    throw ProtocolError(ErrorCode::unknown_model,
                        fmt::format("start.model: expected {}, which the address says, or none, found '{}'", route_->name, name));
  route_ = found;
  return route_->model;
}

Server::State::Route* Server::State::route_named(std::string_view name) noexcept {
  for (const auto& route : routes)
    if (route->name == name) return route.get();
  return nullptr;
}

// ---- Sessions that outlive their connections ----

std::string Server::State::Connection::new_ticket() const {
  return server_->options.limits.resume.count() == 0 ? std::string() : make_ticket();
}

Server::State::Connection& Server::State::holder_of(std::string_view ticket) const {
  const auto held = tickets.find(ticket);
  if (held == tickets.end() || draining)
    throw ProtocolError(ErrorCode::unknown_ticket, "expected the ticket of a session that this server holds, found another");
  return *held->second;
}

void Server::State::Connection::resume(const std::string& ticket, std::uint64_t acknowledged) {
  Connection& holder = server_->holder_of(ticket);
  if (by_address_ && holder.route_ != route_)
    throw ProtocolError(ErrorCode::unknown_ticket,
                        fmt::format("expected the ticket of a session of {}, which the address says, found another", route_->name));
  holder.session_.check_resume(acknowledged);
  handover_ = std::make_unique<Handover>(Handover{nullptr, acknowledged, holder.shared_from_this()});
}

/// The session waits for its client, if it may. Its remaining messages are held; one that ended is held, too, until its client has read so.
void Server::State::Connection::lose_connection() {
  const bool wanted = !session_.over() || session_.outcome() == "ended";
  if (session_.ticket().empty() || !wanted || server_->draining) return close_now();
  parked_ = true;
  server_->leaving.remove(counted_by, leaving_number_);
  stream_->abort();
  deadline_ = Clock::now() + server_->options.limits.resume;
  watch();
  if (session_.over()) server_->hold_ended(*this);
}

/// Ended sessions hold no slot, and are as many as there may be slots.
void Server::State::hold_ended(Connection& connection) {
  ended.emplace(connection.number, &connection);
  if (ended.size() > options.limits.sessions) ended.begin()->second->close_now();
}

void Server::State::Connection::hand_over() {
  const std::unique_ptr<Handover> handover = std::move(handover_);
  std::unique_ptr<MessageStream> stream = std::move(stream_);
  let_go();
  if (!handover->to->closed_) handover->to->adopt(std::move(stream), handover->acknowledged);
}

/// Once nothing is pending on the stream before: pending operations have completed with an error.
void Server::State::Connection::take_over() {
  if (!handover_ || reading_ || writing_ || closing_) return;
  const std::unique_ptr<Handover> handover = std::move(handover_);
  stream_ = std::move(handover->stream);
  parked_ = false;
  deadline_ = Clock::now() + server_->options.limits.idle;
  stream_->limit(server_->options.limits.message, server_->options.limits.control);
  server_->ended.erase(number);
  if (session_.over()) leave_behind_others();
  session_.resume(handover->acknowledged);
  watch();
  server_->pump_soon();
  read();
  write();
}

void Server::State::Connection::close_finished(error_code error) {
  closing_ = false;
  if (closed_) return;
  if (parked_) return take_over();
  // A close that was answered says that all before it was read; the end of a TCP stream does not.
  !error && stream_->peer_close_code() != 0 ? close_now() : lose_connection();
}

namespace {

/// Messages hold the length of a name in a byte.
void check_names(const char* kind, const std::vector<PortSpec>& ports) {
  constexpr std::size_t longest = 255;
  for (const PortSpec& port : ports)
    if (port.name.size() > longest)
      throw ArgumentError(
          fmt::format("server: {} '{}': expected a name of at most {} bytes, found {}", kind, port.name, longest, port.name.size()));
}

}  // namespace

Server::State::State(asio::io_context& on, std::vector<ServedRoute> given_routes, ServerOptions given)
    : context(on),
      options(std::move(given)),
      listener(context.get_executor(), options.address, options.port, reach_of(options)),
      drain_timer_(context) {
  if (given_routes.empty()) throw ArgumentError("server: expected a model, found none");
  if (options.devices.empty()) options.devices.push_back(make_cpu_device());
  std::vector<std::shared_ptr<ThreadExecutor>> workers;
  for (std::size_t i = 0; i < options.devices.size(); ++i) workers.push_back(std::make_shared<ThreadExecutor>(1));
  std::vector<std::string> all;
  for (ServedRoute& route : given_routes) {
    if (!is_route_name(route.name))
      throw ArgumentError(fmt::format(
          "server: expected 1 to 64 characters of A-Z a-z 0-9 - _ as a model's name, and neither stream nor now, found '{}'", route.name));
    if (std::find(all.begin(), all.end(), route.name) != all.end())
      throw ArgumentError(fmt::format("server: expected a name for each model, found '{}' twice", route.name));
    all.push_back(route.name);
    add_route(std::move(route), workers);
  }
  names = std::make_shared<const std::vector<std::string>>(std::move(all));
}

void Server::State::add_route(ServedRoute given, const std::vector<std::shared_ptr<ThreadExecutor>>& workers) {
  if (given.model->learning() && !options.devices.front()->place().is_cpu())
    throw UnsupportedError(fmt::format("server: expected a CPU for the model '{}', whose sessions learn, found {}", given.name,
                                       options.devices.front()->place().to_string()));
  check_names("input", given.model->inputs());
  check_names("output", given.model->outputs());
  const Admission admission(admission_of(given), std::chrono::steady_clock::now());
  Route& route = *routes.emplace_back(std::make_unique<Route>(Route{std::move(given.name), std::move(given.model), admission}));
  make_seal(route);
  for (std::size_t i = 0; i < options.devices.size(); ++i) {
    LivePlace::Options own;
    own.device = options.devices[i];
    own.backend = options.backend;
    own.max_rows = options.max_rows;
    own.ahead = time_for_those_ahead;
    own.tracer = options.tracer;
    own.counts = route.counts;
    own.worker = workers[i];
    route.places.push_back(std::make_shared<ServedPlace>(context, route.model->recurrence(), std::move(own)));
    places.push_back(route.places.back());
  }
}

std::shared_ptr<ServedPlace> Server::State::make_learner(Route& route) {
  const std::shared_ptr<const Learning>& how = route.model->learning();
  if (route.learners.size() >= how->sessions)
    throw ProtocolError(ErrorCode::overload, fmt::format("{} sessions of this model learn, the most that this server takes", how->sessions),
                        retry_when_full_ms);
  if (!learning_) learning_ = std::make_shared<ThreadExecutor>(1);
  const std::shared_ptr<const Recurrence>& recurrence = route.model->recurrence();
  LivePlace::Options own;
  own.device = options.devices.front();
  own.backend = options.backend;
  own.max_rows = 1;
  own.tracer = options.tracer;
  own.counts = route.counts;
  own.worker = learning_;
  own.behind_tick = [learner = std::make_shared<LiveLearner>(how), recurrence](const Tick& tick) {
    return learner->learn(*recurrence, tick);
  };
  const auto made = std::make_shared<ServedPlace>(context, recurrence, std::move(own));
  connect(*made);
  route.learners.insert(made);
  return made;
}

/// A build without the part openssl serves as well, and says so when a client wants to save. Models share a random key: a state names its model.
void Server::State::make_seal(Route& route) {
  const ServedModel& model = *route.model;
  if (model.learning()) {
    route.why_no_seal = "sessions of this model learn, and their weights are no part of a state";
    return;
  }
  try {
    if (!options.state_key) options.state_key = std::make_shared<const StateKey>(StateKey::random());
    route.seal = std::make_unique<const StateSeal>(model.recurrence(), *options.state_key, model.identity(), model.config().labels.size(),
                                                   model.saved_audio_bytes());
    most_state_bytes = std::max(most_state_bytes, route.seal->most_bytes());
  } catch (const UnsupportedError& absent) {
    route.why_no_seal = absent.what();
  }
}

void Server::State::listen() {
  for (const auto& place : places) connect(*place);
  accept();
}

void Server::State::connect(ServedPlace& place) {
  place.on_idle = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->pump();
  };
  place.on_lost = [weak = weak_from_this(), gone = &place] {
    if (const auto self = weak.lock()) self->lost_place(*gone);
  };
}

/// Counts the rows that wait, and the time that they would take at the pace of past ticks. This is done now and then: starts may come by the thousand. Rows of a
/// client that does not read its replies do not count, since they wait for that client. Nor do rows of a client that sends ahead, beyond the first few, which
/// wait for the sessions that keep their pace.
void Server::State::count_waiting_rows() {
  const auto now = std::chrono::steady_clock::now();
  if (now - counted_at_ < std::chrono::milliseconds(50)) return;
  counted_at_ = now;
  waiting_rows_ = 0;
  backlog_seconds_ = 0;
  for (const Connection* session : sessions) {
    if (session->held_up()) continue;
    const std::size_t rows = std::min(session->waiting_rows(), Batcher::few_rows);
    waiting_rows_ += rows;
    double a_row = 0;
    for (const auto& place : session->route().places) a_row = std::max(a_row, place->seconds_a_row());
    backlog_seconds_ += static_cast<double>(rows) * a_row / static_cast<double>(options.devices.size());
  }
}

/// Throws `overload` when there is no room for one more session.
void Server::State::check_room(const Connection& connection) {
  const Limits& limits = options.limits;
  const auto refuse = [](const std::string& why, double seconds) {
    const double retry_ms = std::clamp(seconds * 1000, double{retry_when_full_ms}, 60000.0);
    throw ProtocolError(ErrorCode::overload, why, static_cast<std::uint32_t>(retry_ms));
  };
  if (sessions.size() >= limits.sessions) refuse(fmt::format("{} sessions are live, the most that this server takes", limits.sessions), 0);
  constexpr std::size_t by_default = 64;
  const std::size_t most = limits.sessions_per_address.value_or(connection.is_loopback ? limits.sessions : by_default);
  const auto found = by_address.find(connection.counted_by);
  if (found != by_address.end() && found->second >= most)
    refuse(fmt::format("{} sessions of this address are live, the most that this server takes", most), 0);
  count_waiting_rows();
  const double backlog = backlog_seconds_, longest = std::chrono::duration<double>(limits.backlog).count();
  if (waiting_rows_ > limits.waiting_rows)
    refuse(fmt::format("about {} rows wait for their step, and this server takes no session while more than {} do", waiting_rows_,
                       limits.waiting_rows),
           backlog);
  if (backlog > longest)
    refuse(fmt::format("the rows that wait take about {:.1f} s, and this server takes no session while they take more than {:.1f} s",
                       backlog, longest),
           backlog);
  observe();
  Route& route = connection.route();
  if (const auto refused = route.admission.refuse(route.sessions, used_beside(&route)))
    throw ProtocolError(ErrorCode::overload, refused->why, refused->retry_after_ms);
}

double Server::State::used_beside(const Route* own) const noexcept {
  double used = 0;
  for (const auto& route : routes)
    if (route.get() != own) used += route->admission.share(route->sessions);
  return used;
}

/// Sums over places and the clock of the thread are asked for once a second at most. A step costs the thread as much whichever model's it is.
void Server::State::observe() {
  const auto now = std::chrono::steady_clock::now();
  if (!seconds_seen_) seconds_seen_ = processor_seconds();
  if (!routes.front()->admission.due(now)) return;
  const double seconds = processor_seconds();
  const std::uint64_t steps = stats().rows;
  const double a_step = steps > steps_seen_ ? (seconds - *seconds_seen_) / static_cast<double>(steps - steps_seen_) : 0;
  for (const auto& route : routes) {
    const std::uint64_t own = route->stats().rows;
    route->transport_seconds += a_step * static_cast<double>(own - route->admission.steps());
    route->admission.observe(now, own, route->transport_seconds);
  }
  steps_seen_ = steps;
  seconds_seen_ = seconds;
}

/// Admits a session, and gives the batcher in which it begins: of its model's places that are not lost, the one with the fewest sessions.
Batcher& Server::State::place_for(Connection& connection) {
  check_room(connection);
  Route& route = connection.route();
  if (route.model->learning()) {
    Batcher& alone = connection.learn_at(make_learner(route));
    route.admission.started();
    return alone;
  }
  LivePlace* found = nullptr;
  for (const auto& place : route.places)
    if (!place->lost() && (found == nullptr || place->batcher().live() < found->batcher().live())) found = place.get();
  if (found == nullptr)
    throw ProtocolError(ErrorCode::lost, fmt::format("no place is left: {}", text_of_error(route.places.front()->lost())));
  route.admission.started();
  return found->batcher();
}

void Server::State::lost_place(const LivePlace& gone) {
  for (const auto& place : places) place->check();  // one that goes may take others along
  std::size_t left = 0;
  for (std::size_t device = 0; device < options.devices.size(); ++device)
    left += std::none_of(routes.begin(), routes.end(), [&](const auto& route) { return bool(route->places[device]->lost()); }) ? 1 : 0;
  call_copy(lost, text_of_error(gone.lost()), gone.told(), left);
}

void Server::State::accept() {
  const auto take = [weak = weak_from_this()](asio::ip::tcp::socket socket) {
    const auto self = weak.lock();
    error_code gone;
    const auto peer = socket.remote_endpoint(gone);
    if (self && !gone) self->admit(std::move(socket), peer.address());
  };
  // Several connections a turn: one for each turn of the sockets would let the queue grow while there is much to do. They are few beside those that may
  // wait, so that a client that speaks at once is heard before it has to make room.
  listener.accept_all(take, [weak = weak_from_this()] {
    const auto self = weak.lock();
    return self ? std::min(most_accepted, self->most_newcomers() / 8) : std::size_t{1};
  });
}

template <class Carrier>
void Server::State::admit(Carrier carrier, const asio::ip::address& peer) {
  ++counts->connections;
  std::shared_ptr<Connection> connection;
  try {
    // The descriptor of one that went is free a little later, and then its low number hides how many there are.
    if (connections.size() >= most_connections_) make_room();
    // A silent connection keeps nobody out: one that has waited goes, and is told so.
    if (newcomers.size() >= most_newcomers())
      newcomers.first_to_go().displace(fmt::format("expected start before {} others waited for theirs", most_newcomers()), false);
    connection = std::make_shared<Connection>(shared_from_this(), ++last_number_, plain(peer));
    connections.insert(connection);
    newcomers.add(connection->counted_by, connection->number, connection.get());
    connection->begin(std::move(carrier));
  } catch (const std::exception&) {
    connection ? connection->close_now() : counts->refused.add(name_of(ErrorCode::overload));
  }
}

/// For want of a descriptor: a connection on its way out goes, else one that has said no start. Sessions stay.
bool Server::State::make_room() {
  if (leaving.empty() && newcomers.empty()) return false;
  most_connections_ = connections.size();
  Connection& first = leaving.empty() ? newcomers.first_to_go() : leaving.first_to_go();
  first.displace(no_descriptor, true);
  return true;
}

void Server::State::closed(const std::shared_ptr<Connection>& connection) {
  if (connections.erase(connection) == 0) return;
  listener.wake();
  if (connections.size() <= most_connections_ / 2) most_connections_ = std::numeric_limits<std::size_t>::max();
  if (draining && connections.empty()) {
    drain_timer_.cancel();
    asio::post(context, [self = shared_from_this()] { call_copy(self->stopped); });
  }
}

void Server::State::pump_soon() {
  observe();
  for (const auto& place : places) place->pump_soon();
  for (const auto& route : routes)
    for (const auto& learner : route->learners) learner->pump_soon();
}

void Server::State::pump() {
  for (const auto& place : places) place->pump();
  for (const auto& route : routes)
    for (const auto& learner : route->learners) learner->pump();
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
    asio::post(context, [self = shared_from_this()] { call_copy(self->stopped); });
    return;
  }
  // Each is told once all that it said before has been answered.
  const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& connection : all) connection->dismiss();
  pump();
}

void Server::State::shut_down() noexcept {
  listener.close();
  const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& connection : all) connection->close_now();
}

namespace {

std::vector<ServedRoute> only_route(std::shared_ptr<const ServedModel> model, const Admission::Options& admission) {
  std::vector<ServedRoute> routes;
  routes.push_back({default_route, std::move(model), admission});
  return routes;
}

}  // namespace

Server::Server(asio::io_context& context, std::shared_ptr<const ServedModel> model, ServerOptions options)
    : Server(context, only_route(std::move(model), options.admission), options) {}

Server::Server(asio::io_context& context, std::vector<ServedRoute> routes, ServerOptions options)
    : state_(std::make_shared<State>(context, std::move(routes), std::move(options))) {
  state_->stopped = [this] { call_copy(on_stopped); };
  state_->lost = [this](const std::string& why, std::size_t sessions, std::size_t left) { call_copy(on_lost, why, sessions, left); };
  state_->session_ended = [this](const SessionEnd& end) { call_copy(on_session_end, end); };
  state_->listener.on_scarce([this](const std::string& why) { call_copy(on_scarce, why); });
  state_->listener.refuse_with(refusal_over_http(), refusal_over_tcp());
  state_->listener.on_refused([counts = state_->counts] {
    ++counts->connections;
    counts->refused.add(name_of(ErrorCode::overload));
  });
  state_->listener.make_room_with([state = state_.get()] { return state->make_room(); });
  state_->listen();
}

void run_servers(asio::io_context& context, const std::function<void(const std::string&)>& on_error) {
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::exception& error) {
      try {
        if (on_error) on_error(error.what());
      } catch (const std::exception&) {  // there is no memory for that either
      }
    }
  }
}

Server::~Server() {
  state_->stopped = nullptr;
  state_->lost = nullptr;
  state_->session_ended = nullptr;
  state_->listener.on_scarce(nullptr);
  state_->shut_down();
}

std::string Server::address() const { return state_->listener.address(); }
std::uint16_t Server::port() const { return state_->listener.port(); }
void Server::serve(ByteStream bytes, const asio::ip::address& peer) {
  if (!state_->draining) state_->admit(std::move(bytes), peer);
}
void Server::drain() { state_->drain(); }
std::size_t Server::newcomers() const noexcept { return state_->newcomers.size(); }
std::size_t Server::live_sessions() const noexcept {
  std::size_t all = 0;
  for (const auto& place : state_->places) all += place->batcher().live();
  for (const auto& route : state_->routes)
    for (const auto& learner : route->learners) all += learner->batcher().live();
  return all;
}

Batcher::Stats Server::stats() const noexcept { return state_->stats(); }
Server::Load Server::load() const noexcept {
  const State::Route& first = *state_->routes.front();
  return {first.admission.capacity(), first.admission.load(first.sessions)};
}
double Server::used() const noexcept { return state_->used_beside(nullptr); }

std::vector<Server::PlaceStats> Server::places() const {
  std::vector<PlaceStats> all;
  for (const auto& route : state_->routes) {
    const std::size_t first = all.size();
    for (const auto& place : route->places)
      all.push_back({route->name, place->place(), place->batcher().stats(), place->batcher().live(),
                     place->lost() ? text_of_error(place->lost()) : "", place->seconds_a_row(), place->state_bytes()});
    // Sessions that learn live on the first device, each at a place of its own.
    PlaceStats& there = all[first];
    add(there.ticks, route->learned);
    for (const auto& learner : route->learners) {
      add(there.ticks, learner->batcher().stats());
      there.sessions += learner->batcher().live();
      there.seconds_a_row = std::max(there.seconds_a_row, learner->seconds_a_row());
      there.state_bytes += learner->state_bytes();
    }
    if (there.seconds_a_row == 0) there.seconds_a_row = route->learned_seconds_a_row;
  }
  return all;
}

std::vector<Server::ModelStats> Server::models() const {
  std::vector<ModelStats> all;
  for (const auto& route : state_->routes)
    all.push_back(
        {route->name, route->sessions, 0, {route->admission.capacity(), route->admission.load(route->sessions)}, route->counts.get()});
  for (const State::Connection* session : state_->sessions)
    for (ModelStats& one : all)
      if (one.name == session->route().name) one.waiting_rows += session->waiting_rows();
  return all;
}

const ServerCounts& Server::counts() const noexcept { return *state_->counts; }
std::vector<Server::SessionInfo> Server::sessions() const {
  std::vector<SessionInfo> all;
  for (const State::Connection* session : state_->sessions) all.push_back(session->info());
  std::sort(all.begin(), all.end(), [](const SessionInfo& a, const SessionInfo& b) { return a.number < b.number; });
  return all;
}
std::size_t Server::max_sessions() const noexcept { return state_->options.limits.sessions; }
std::string Server::refuses_all() const {
  state_->observe();
  std::string why;
  for (const auto& route : state_->routes) {
    const std::shared_ptr<const Learning>& how = route->model->learning();
    const bool all_learn = how && route->learners.size() >= how->sessions;
    if (!all_learn && !route->admission.full(route->sessions, state_->used_beside(route.get()))) return {};
    if (why.empty()) why = all_learn ? "all sessions that may learn are taken" : "no steps are left for another session";
  }
  return why;
}
std::size_t Server::waiting_rows() const {
  std::size_t rows = 0;
  for (const State::Connection* session : state_->sessions) rows += session->waiting_rows();
  return rows;
}
bool Server::draining() const noexcept { return state_->draining; }

std::string Server::backend() const { return state_->places.front()->backend(); }

}  // namespace millrace
