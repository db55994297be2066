// SPDX-License-Identifier: Apache-2.0
// The server and the connections of clients, on one thread for the network: the side of C++ of Server and connect of millrace.live.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>

#include <millrace/runtime/executor/feeds.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/streaming/config/stream_config.h>
#include <millrace/streaming/live/capacity.h>
#include <millrace/streaming/live/server.h>
#include <millrace/streaming/protocol/error_code.h>
#include <millrace/streaming/transport/connection.h>
#include <millrace/streaming/transport/message_stream.h>
#include <millrace/streaming/transport/tls.h>
#include <millrace/streaming/transport/token_set.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/start_thread.h>
#include <millrace/tensor/work_failure.h>

#include "build.h"
#include "engine.h"
#include "event_loop.h"
#include "gil.h"
#include "live_arguments.h"

namespace millrace::python {
namespace {

/// The thread of sockets. It begins with the first NetworkUse, and ends behind the last one.
class Network {
 public:
  /// Of this process. With the GIL held.
  static Network& current() {
    static Network* made = nullptr;
    static int forks_of_it = 0;
    if (made == nullptr || forks_of_it != forks()) {
      made = new Network();  // never destroyed: a server that nothing closed keeps the thread until the process ends
      forks_of_it = forks();
    }
    return *made;
  }
  asio::io_context& context() noexcept { return context_; }

 private:
  friend class NetworkUse;
  Network() = default;
  void enter() {
    const std::lock_guard lock(mutex_);
    if (users_ == 0) {
      if (thread_.joinable()) thread_.join();  // nothing keeps it any more
      context_.restart();
      work_.emplace(context_.get_executor());
      const SignalsBlocked blocked;
      thread_ = start_thread("the thread of servers", [this] { run_servers(context_); });
    }
    ++users_;
  }
  void leave() noexcept {
    const std::lock_guard lock(mutex_);
    if (--users_ == 0) work_.reset();
  }

  asio::io_context context_{1};
  std::mutex mutex_;
  std::size_t users_ = 0;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::thread thread_;
};

/// Keeps the network's thread. Made with the GIL held; destroyed on any thread.
class NetworkUse {
 public:
  NetworkUse() : network_(&Network::current()), forks_(forks()) {
    const GilReleased released;
    network_->enter();
  }
  ~NetworkUse() {
    if (network_ != nullptr && forks_ == forks()) network_->leave();
  }
  NetworkUse(NetworkUse&& other) noexcept : network_(std::exchange(other.network_, nullptr)), forks_(other.forks_) {}
  NetworkUse& operator=(NetworkUse&&) = delete;

  asio::io_context& context() const noexcept { return network_->context(); }
  template <class F>
  void post(F f) const {
    asio::post(context(), std::move(f));
  }
  /// Calls `f` on the thread, and waits for it without the GIL.
  template <class F>
  void call(F f) const {
    const GilReleased released;
    std::promise<void> done;
    post([&] {
      try {
        f();
        done.set_value();
      } catch (...) {
        done.set_exception(std::current_exception());
      }
    });
    done.get_future().get();
  }

 private:
  Network* network_;
  int forks_;
};

template <class T>
using Done = std::function<void(Outcome<T>)>;

template <class T>
Outcome<T> failure(std::exception_ptr error) {
  Outcome<T> outcome;
  outcome.set_error(std::move(error));
  return outcome;
}
std::exception_ptr network_error(const std::string& what, const error_code& error) {
  return std::make_exception_ptr(IoError(fmt::format("{}: {}", what, error.message())));
}
std::exception_ptr cancelled(const char* what) { return std::make_exception_ptr(CancelledError(fmt::format("{} was cancelled", what))); }

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, 1e9) * 1000));
}

// ---- The server ----

struct ServerArguments {
  ServerOptions options;
  std::shared_ptr<TlsServer> tls;
  std::shared_ptr<TokenSet> tokens;
};

/// A server on the network's thread. Its members are called there, but for the constructor, `let_go` and what is const from then on.
class Serving : public std::enable_shared_from_this<Serving> {
 public:
  Serving(std::vector<ServedRoute> routes, ServerArguments arguments)
      : model(routes.front().model),
        forks_(forks()),
        network_(std::in_place),
        tls_(std::move(arguments.tls)),
        tokens_(std::move(arguments.tokens)) {
    network_->call([&] {
      server_ = std::make_unique<Server>(network_->context(), std::move(routes), std::move(arguments.options));
      server_->on_stopped = [this] { asio::post(network_->context(), [self = shared_from_this()] { self->end(); }); };
      server_->on_lost = [this](const std::string& why, std::size_t, std::size_t left) {
        if (left > 0) return;
        error_ = std::make_exception_ptr(DeviceError("serve: no device is left: " + why));
        server_->drain();
      };
      address = server_->address();
      port = server_->port();
    });
  }
  ~Serving() {
    if (forks_ != forks()) static_cast<void>(server_.release());
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  /// Closes the server at once, unless it has stopped. From a thread with the GIL.
  static void let_go(const std::shared_ptr<Serving>& serving) {
    if (serving->forks_ != forks() || serving->stopped_) return;
    NetworkUse().post([serving] {
      if (serving->stopped_) return;
      serving->itself_ = serving;
      serving->server_->drain();
      serving->server_->drain();
    });
  }
  void expect_own_process() const {
    if (forks_ != forks())
      throw UnsupportedError("server: it was made before this process was forked, whose threads it lacks: make it again here");
  }
  void drain() {
    if (!stopped_) server_->drain();
  }
  void reload() {
    if (tls_ != nullptr) tls_->reload();
    if (tokens_ != nullptr) tokens_->reload();
  }
  void when_stopped(std::uint64_t number, Done<void> done) {
    if (stopped_) return say(done);
    waiting_.emplace_back(number, std::move(done));
  }
  void forget(std::uint64_t number) {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& one) { return one.first == number; });
    if (found == waiting_.end()) return;
    const Done<void> done = std::move(found->second);
    waiting_.erase(found);
    done(failure<void>(cancelled("the wait for the end of a server")));
  }
  std::size_t live_sessions() const { return stopped_ ? 0 : server_->live_sessions(); }
  Batcher::Stats stats() const { return stopped_ ? stats_ : server_->stats(); }
  Server::Load load() const { return stopped_ ? Server::Load() : server_->load(); }

  const std::shared_ptr<const ServedModel> model;  // the default
  std::string address;
  std::uint16_t port = 0;

 private:
  void say(const Done<void>& done) const {
    Outcome<void> outcome;
    if (error_ != nullptr)
      outcome.set_error(error_);
    else
      outcome.set_value();
    done(std::move(outcome));
  }
  /// Behind the server's own call. Its threads are joined before anybody hears of its end.
  void end() {
    if (stopped_) return;
    stats_ = server_->stats();
    server_.reset();
    stopped_ = true;
    itself_.reset();
    for (const auto& [number, done] : std::exchange(waiting_, {})) say(done);
    network_.reset();
  }

  int forks_;
  std::optional<NetworkUse> network_;  // until it has stopped
  std::shared_ptr<TlsServer> tls_;
  std::shared_ptr<TokenSet> tokens_;
  std::unique_ptr<Server> server_;
  std::atomic<bool> stopped_ = false;  // set on the network's thread
  Batcher::Stats stats_;
  std::exception_ptr error_;  // why it stopped by itself
  std::shared_ptr<Serving> itself_;
  std::list<std::pair<std::uint64_t, Done<void>>> waiting_;
};

struct ServerObject {
  std::shared_ptr<Serving> serving;

  explicit ServerObject(std::shared_ptr<Serving> of) : serving(std::move(of)) {}
  ~ServerObject() {
    if (serving != nullptr) Serving::let_go(serving);
  }
  ServerObject(ServerObject&&) noexcept = default;
  ServerObject& operator=(ServerObject&&) noexcept = default;
};

/// Sets a limit by its name, that of the flag of `millrace serve` without its dashes in front and `max` in it.
void set_limit(Limits& limits, const std::string& name, double value) {
  static const std::map<std::string, std::size_t Limits::*> counts{
      {"message", &Limits::message},           {"control", &Limits::control},     {"start", &Limits::start},
      {"request_head", &Limits::request_head}, {"chunks_in", &Limits::chunks_in}, {"queued_in", &Limits::queued_in},
      {"queued_out", &Limits::queued_out},     {"held_out", &Limits::held_out},   {"newcomers", &Limits::newcomers},
      {"waiting_rows", &Limits::waiting_rows}};
  static const std::map<std::string, std::chrono::milliseconds Limits::*> times{
      {"backlog", &Limits::backlog}, {"handshake", &Limits::handshake}, {"stuck_writer", &Limits::stuck_writer}};
  const bool is_time = times.count(name) > 0;
  if (name != "sessions_per_address" && !is_time && counts.count(name) == 0) {
    std::string names = "sessions_per_address";
    for (const auto& [known, member] : counts) names += ", " + known;
    for (const auto& [known, member] : times) names += ", " + known;
    throw ArgumentError(fmt::format("serve: expected one of the limits {}, found '{}'", names, name));
  }
  const double least = is_time ? 0.001 : 1, most = is_time ? 86400.0 : name == "message" ? double{Limits::message_ceiling} : 2147483648.0;
  if (!(value >= least && value <= most))
    throw ArgumentError(fmt::format("serve: expected {} to {} as the limit '{}', found {}", least, most, name, value));
  if (name == "sessions_per_address")
    limits.sessions_per_address = static_cast<std::size_t>(value);
  else if (is_time)
    limits.*times.at(name) = milliseconds(value);
  else
    limits.*counts.at(name) = static_cast<std::size_t>(value);
}

/// The clients that may connect.
struct Access {
  std::optional<std::string> certificate, key;
  std::optional<std::vector<std::string>> tokens;
  std::optional<std::string> token_file;
  bool insecure = false;
};

void set_access(ServerArguments& to, const Access& access) {
  if (access.certificate.has_value() != access.key.has_value())
    throw ArgumentError("serve: expected tls_cert and tls_key together, found one of them");
  if (access.certificate) to.tls = std::make_shared<TlsServer>(*access.certificate, *access.key);
  if (access.tokens && access.token_file) throw ArgumentError("serve: expected tokens or token_file, found both");
  if (access.tokens) to.tokens = std::make_shared<TokenSet>(TokenSet::of(*access.tokens));
  if (access.token_file) to.tokens = std::make_shared<TokenSet>(*access.token_file);
  to.options.tls = to.tls;
  to.options.tokens = to.tokens;
  to.options.insecure = access.insecure;
  error_code error;
  const auto address = asio::ip::make_address(to.options.address, error);
  if (!error && !address.is_loopback() && !access.insecure && (!to.tls || !to.tokens))
    throw ArgumentError(fmt::format(
        "serve: address {}: others can reach it: expected tls_cert, tls_key and tokens, or insecure=True for a server without them",
        to.options.address));
}

/// The steps a second that are admitted: a number, or as measured by ticks of the model, within the budget.
void set_admission(ServedRoute& route, const ServerOptions& options, nb::handle capacity, double session_rate,
                   std::chrono::duration<double> budget) {
  const ServedModel& model = *route.model;
  Admission::Options& own = route.admission;
  own.session_rate = session_rate;
  if (!(session_rate >= 0)) throw ArgumentError(fmt::format("serve: expected a session_rate of 0 or more, found {}", session_rate));
  if (own.session_rate <= 0 && model.config().audio) own.session_rate = 1 / model.config().audio->step_seconds();
  if (capacity.is_none()) return;
  if (!nb::isinstance<nb::str>(capacity)) {
    own.capacity = argument<double>(capacity, "serve: capacity", "steps a second, or 'measure'");
    if (!(own.capacity >= 0)) throw ArgumentError(fmt::format("serve: expected a capacity of 0 or more, found {}", own.capacity));
    return;
  }
  if (nb::cast<std::string>(capacity) != "measure")
    throw ArgumentError(
        fmt::format("serve: expected steps a second, or 'measure', as the capacity, found '{}'", nb::cast<std::string>(capacity)));
  own.by_transport = true;
  const std::chrono::duration<double> deadline(own.session_rate > 0 ? 1 / own.session_rate : 0.04);
  const GilReleased released;
  own.capacity = measure_capacity(model, options.devices, options.backend, options.max_rows, deadline, budget).steps_per_second;
}

/// `models`: (name, program, live arguments, config), the default first. Settings that are not of a model are taken from the first.
std::shared_ptr<Serving> make_server(const nb::list& models, const std::string& address, int port, double idle,
                                     const std::vector<std::string>& origins, const Access& access, nb::handle capacity,
                                     double session_rate, double resume, const std::map<std::string, double>& limits) {
  if (port < 0 || port > 65535) throw ArgumentError(fmt::format("serve: expected a port of 0 … 65535, found {}", port));
  if (!(idle > 0)) throw ArgumentError(fmt::format("serve: expected more than 0 seconds of idleness, found {}", idle));
  if (!(resume >= 0)) throw ArgumentError(fmt::format("serve: expected 0 or more seconds to resume, found {}", resume));
  if (nb::len(models) == 0) throw ArgumentError("serve: expected a model, found none");
  const LiveArguments live =
      live_arguments("serve", *nb::cast<const SharedProgram&>(models[0][1]).program, nb::cast<nb::dict>(models[0][2]));
  ServerArguments arguments;
  ServerOptions& options = arguments.options;
  options.address = address;
  options.port = static_cast<std::uint16_t>(port);
  options.max_rows = live.max_rows;
  for (const auto& [name, value] : limits) set_limit(options.limits, name, value);
  options.limits.sessions = live.sessions;
  options.limits.idle = milliseconds(idle);
  options.limits.resume = milliseconds(resume);
  options.origins = origins;
  options.backend = live.backend;
  options.state_key = live.state_key;
  set_access(arguments, access);
  {
    const SignalsBlocked blocked;
    options.devices.push_back(make_cpu_device(live.threads, 4));
  }
  std::vector<ServedRoute> routes;
  const std::chrono::duration<double> budget(1.0 / static_cast<double>(nb::len(models)));
  for (nb::handle one : models) {
    const auto& program = nb::cast<const SharedProgram&>(one[1]);
    const LiveArguments own = live_arguments("serve", *program.program, nb::cast<nb::dict>(one[2]));
    const auto config = nb::cast<std::string>(one[3]);
    StreamConfig stream = config.empty() ? StreamConfig() : read_stream_config(config);
    ServedRoute& route = routes.emplace_back();
    route.name = nb::cast<std::string>(one[0]);
    route.model = std::make_shared<const ServedModel>(*program.program, std::move(stream), own.states, own.constants, own.rows);
    set_admission(route, options, capacity, session_rate, budget);
  }
  return std::make_shared<Serving>(std::move(routes), std::move(arguments));
}

OperationObject wait_for_stop(const ServerObject& self, const LoopObject& loop) {
  static std::uint64_t last = 0;  // used with the GIL held
  const std::uint64_t number = ++last;
  self.serving->expect_own_process();
  const auto begin = [&](const Ref<Run>&, auto done) {
    NetworkUse().post(
        [serving = self.serving, number, done = Done<void>(std::move(done))]() mutable { serving->when_stopped(number, std::move(done)); });
  };
  const auto cancel = [serving = self.serving, number] { NetworkUse().post([serving, number] { serving->forget(number); }); };
  return start_elsewhere<void>(loop, "server", [] { return nb::none(); }, begin, cancel);
}

template <class F>
auto asked(const ServerObject& self, F f) {
  self.serving->expect_own_process();
  std::optional<decltype(f(*self.serving))> answer;
  NetworkUse().call([&] { answer.emplace(f(*self.serving)); });
  return *std::move(answer);
}

void bind_server(nb::module_& m) {
  nb::class_<ServerObject> server(m, "_Server", "The side of C++ of millrace.live.Server.");
  server
      .def(
          "__init__",
          [](ServerObject* self, const nb::typed<nb::list, nb::object>& models, const std::string& address, int port, double idle,
             const std::vector<std::string>& origins, std::optional<std::string> certificate, std::optional<std::string> key,
             std::optional<std::vector<std::string>> tokens, std::optional<std::string> token_file, bool insecure, nb::object capacity,
             double session_rate, double resume, const std::map<std::string, double>& limits) {
            const Access access{std::move(certificate), std::move(key), std::move(tokens), std::move(token_file), insecure};
            new (self) ServerObject(make_server(models, address, port, idle, origins, access, capacity, session_rate, resume, limits));
          },
          "models"_a, "address"_a, "port"_a, "idle"_a, "origins"_a, "tls_cert"_a.none(), "tls_key"_a.none(), "tokens"_a.none(),
          "token_file"_a.none(), "insecure"_a, "capacity"_a.none(), "session_rate"_a, "resume"_a, "limits"_a)
      .def_prop_ro("address", [](const ServerObject& self) { return self.serving->address; })
      .def_prop_ro("port", [](const ServerObject& self) { return self.serving->port; })
      .def_prop_ro("load",
                   [](const ServerObject& self) {
                     const Server::Load load = asked(self, [](const Serving& serving) { return serving.load(); });
                     return std::map<std::string, double>{{"capacity", load.capacity}, {"asked", load.asked}};
                   })
      .def("reload",
           [](const ServerObject& self) {
             asked(self, [](Serving& serving) {
               serving.reload();
               return true;
             });
           })
      .def("drain",
           [](const ServerObject& self) {
             self.serving->expect_own_process();
             NetworkUse().post([serving = self.serving] { serving->drain(); });
           })
      .def("stopped", &wait_for_stop, "loop"_a);
  bind_live_figures(
      server, [](const ServerObject& self) -> const Recurrence& { return *self.serving->model->recurrence(); },
      [](const ServerObject& self) { return asked(self, [](const Serving& serving) { return serving.live_sessions(); }); },
      [](const ServerObject& self) { return asked(self, [](const Serving& serving) { return serving.stats(); }); });
}

// ---- Connections of clients ----

/// A stream of messages, used and destroyed on the network's thread.
struct Connection {
  NetworkUse network;  // behind the stream
  std::unique_ptr<MessageStream> stream;
  int made_after_forks = forks();

  /// Destroyed on that thread, whoever lets go of it last.
  static std::shared_ptr<Connection> make(NetworkUse network, std::unique_ptr<MessageStream> stream) {
    return {new Connection{std::move(network), std::move(stream)}, [](Connection* made) {
              if (made->made_after_forks == forks()) made->network.post([made] { delete made; });
            }};
  }
};

struct ConnectionObject {
  std::shared_ptr<Connection> connection;
};

void abort(const std::shared_ptr<Connection>& connection) {
  connection->network.post([connection] { connection->stream->abort(); });
}

/// An attempt to connect, on the network's thread.
struct Attempt {
  explicit Attempt(NetworkUse use) : network(std::move(use)) {}
  NetworkUse network;
  asio::cancellation_signal cancel;
  Done<std::shared_ptr<Connection>> done;

  void end(Outcome<std::shared_ptr<Connection>> outcome) { std::exchange(done, nullptr)(std::move(outcome)); }
};

void begin_connect(const std::shared_ptr<Attempt>& attempt, const std::string& url, StreamUrl to, ConnectOptions options) {
  asio::any_io_executor executor = attempt->network.context().get_executor();
  auto handler = [url, attempt](error_code error, std::unique_ptr<MessageStream> stream) {
    Outcome<std::shared_ptr<Connection>> outcome;
    if (error)
      outcome.set_error(network_error("connect to " + url, error));
    else
      outcome.set_value(Connection::make(std::move(attempt->network), std::move(stream)));
    attempt->end(std::move(outcome));
  };
  try {
    async_connect_stream(executor, std::move(to), std::move(options),
                         asio::bind_cancellation_slot(attempt->cancel.slot(), std::move(handler)));
  } catch (...) {
    attempt->end(failure<std::shared_ptr<Connection>>(std::current_exception()));
  }
}

OperationObject connect(const LoopObject& loop, const std::string& url, const std::string& token, const std::string& authorities,
                        bool insecure) {
  StreamUrl to = parse_stream_url(url);
  ConnectOptions options;
  options.limits.message = Limits::message_ceiling;
  options.token = token;
  options.token_in_clear = insecure;
  if (to.is_encrypted())
    options.tls = std::make_shared<TlsClient>(insecure ? TlsClient::trusting_anyone() : TlsClient(authorities));
  else if (!authorities.empty())
    throw ArgumentError(fmt::format("connect: tls_ca: expected an address of tcps:// or wss://, found {}", url));
  const auto attempt = std::make_shared<Attempt>(NetworkUse());
  const auto begin = [&](const Ref<Run>&, auto done) {
    attempt->done = std::move(done);
    attempt->network.post([attempt, url, to, options] { begin_connect(attempt, url, to, options); });
  };
  const auto convert = [](std::shared_ptr<Connection> made) { return nb::cast(ConnectionObject{std::move(made)}); };
  const auto cancel = [attempt] { NetworkUse().post([attempt] { attempt->cancel.emit(asio::cancellation_type::terminal); }); };
  return start_elsewhere<std::shared_ptr<Connection>>(loop, "connect", convert, begin, cancel);
}

OperationObject write_all(const ConnectionObject& self, const LoopObject& loop, std::vector<Message> all) {
  const auto begin = [&](const Ref<Run>&, auto done) {
    self.connection->network.post([connection = self.connection, all = std::move(all), done = std::move(done)]() mutable {
      MessageStream& stream = *connection->stream;
      stream.async_write_all(std::move(all), [connection, done = std::move(done)](error_code error) mutable {
        Outcome<void> outcome;
        if (error) outcome.set_error(network_error("write to the server", error));
        done(std::move(outcome));
      });
    });
  };
  return start_elsewhere<void>(loop, "write", [] { return nb::none(); }, begin, [connection = self.connection] { abort(connection); });
}

OperationObject read_message(const ConnectionObject& self, const LoopObject& loop) {
  const auto begin = [&](const Ref<Run>&, auto done) {
    self.connection->network.post([connection = self.connection, done = std::move(done)]() mutable {
      MessageStream& stream = *connection->stream;
      stream.async_read([connection, done = std::move(done)](error_code error, Message message) mutable {
        Outcome<Message> outcome;
        if (error)
          outcome.set_error(network_error("read from the server", error));
        else
          outcome.set_value(std::move(message));
        done(std::move(outcome));
      });
    });
  };
  const auto convert = [](Message message) {
    return nb::object(nb::make_tuple(message.kind == MessageKind::text, nb::bytes(message.payload.data(), message.payload.size())));
  };
  return start_elsewhere<Message>(loop, "read", convert, begin, [connection = self.connection] { abort(connection); });
}

/// From pieces of its bytes, which may lie anywhere.
Tensor tensor_of(DType dtype, const std::vector<std::int64_t>& dims, const std::vector<nb::object>& pieces) {
  Tensor made(dtype, DDim(std::span<const std::int64_t>(dims)));
  made.storage()->mark_written();
  std::size_t at = 0;
  for (const nb::object& piece : pieces) {
    const Tensor bytes = tensor_sharing(piece);
    if (bytes.bytes() > made.bytes() - at) at = made.bytes() + 1;
    if (at > made.bytes()) break;
    if (bytes.bytes() > 0) std::memcpy(static_cast<std::byte*>(made.raw_mutable()) + at, bytes.raw(), bytes.bytes());
    at += bytes.bytes();
  }
  if (at != made.bytes())
    throw ParseError(fmt::format("result: expected {} bytes for {}{}, found {}", made.bytes(), name_of(dtype), made.dims().to_string(),
                                 at > made.bytes() ? "more" : std::to_string(at)));
  return made;
}

/// Rows as they go over the network, of the dtype and the extents that the server has named. Shared with the array where it is contiguous.
Tensor rows_of(nb::handle rows, const std::string& name, DType dtype, const std::vector<std::int64_t>& row) {
  const DDim extents{std::span<const std::int64_t>(row)};
  const VarType type(dtype, extents.inserted(0, DDim::unknown));
  const Value value = value_from(rows, name, type);
  check_feed(name, type, value);
  return value.tensor().tensor();
}

/// Data messages for the bytes of `rows` from `begin` on, as many as fit `most` together; each begins with `head`.
OperationObject write_rows(const ConnectionObject& self, const LoopObject& loop, const nb::bytes& head, const Tensor& rows,
                           std::size_t begin, std::size_t most) {
  constexpr std::size_t piece = std::size_t{64} << 10;
  const auto* bytes = static_cast<const char*>(rows.bytes() > 0 ? rows.raw() : "");
  const std::size_t end = std::min(rows.bytes(), begin + most);
  std::vector<Message> all;
  for (; begin < end; begin += piece) {
    std::string payload(head.c_str(), head.size());
    payload.append(bytes + begin, std::min(piece, end - begin));
    all.emplace_back(MessageKind::binary, std::move(payload));
  }
  return write_all(self, loop, std::move(all));
}

void bind_connection(nb::module_& m) {
  nb::class_<ConnectionObject>(m, "_Connection", "Messages to and from a server, for millrace.live.")
      .def(
          "write_text",
          [](const ConnectionObject& self, const LoopObject& loop, std::string text) {
            std::vector<Message> one;
            one.emplace_back(MessageKind::text, std::move(text));
            return write_all(self, loop, std::move(one));
          },
          "loop"_a, "text"_a)
      .def("write_rows", &write_rows, "loop"_a, "head"_a, "rows"_a, "begin"_a, "most"_a)
      .def("read", &read_message, "loop"_a)
      .def("abort", [](const ConnectionObject& self) { abort(self.connection); });
  m.def("_connect", &connect, "loop"_a, "url"_a, "token"_a, "tls_ca"_a, "insecure"_a);
  m.def("_tensor_of", &tensor_of, "dtype"_a, "shape"_a, "pieces"_a);
  m.def("_rows_of", &rows_of, "rows"_a, "name"_a, "dtype"_a, "row"_a);
}

}  // namespace

void bind_serving(nb::module_& m) {
  bind_server(m);
  bind_connection(m);
}

}  // namespace millrace::python
