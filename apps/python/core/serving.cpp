// SPDX-License-Identifier: Apache-2.0
// The server and the connections of clients, on one thread for the network: the side of C++ of Server and connect of millrace.live.
#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <millrace/runtime/executor/feeds.h>
#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/streaming/config/stream_config.h>
#include <millrace/streaming/live/server.h>
#include <millrace/streaming/protocol/error_code.h>
#include <millrace/streaming/transport/connection.h>
#include <millrace/streaming/transport/message_stream.h>
#include <millrace/tensor/device.h>

#include "build.h"
#include "engine.h"
#include "event_loop.h"

namespace millrace::python {
namespace {

/// The thread of sockets. Made when it is first wanted, and again in a child process. It lives as long as the process.
class Network {
 public:
  static Network& current() {
    static Network* made = nullptr;  // used with the GIL held
    static int forks_of_it = 0;
    if (made == nullptr || forks_of_it != forks()) {
      made = new Network();
      forks_of_it = forks();
    }
    return *made;
  }
  asio::io_context& context() noexcept { return context_; }
  template <class F>
  void post(F f) {
    asio::post(context_, std::move(f));
  }
  /// Calls `f` on the thread, and waits for it without the GIL.
  template <class F>
  void call(F f) {
    const nb::gil_scoped_release released;
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
  Network() {
    const SignalsBlocked blocked;
    std::thread([this] { context_.run(); }).detach();
  }

  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
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

// ---- The server ----

/// A server on the network's thread. Its members are called there, but for the constructor.
class Serving {
 public:
  Serving(std::shared_ptr<const ServedModel> model, ServerOptions options) : forks_(forks()), context_(Network::current().context()) {
    Network::current().call([&] {
      server_ = std::make_unique<Server>(context_, std::move(model), std::move(options));
      server_->on_stopped = [this] { stop(); };
      address = server_->address();
      port = server_->port();
    });
  }
  ~Serving() {
    if (forks_ != forks()) static_cast<void>(server_.release());
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  /// Closes the server, and destroys it on its thread once it has stopped.
  static void let_go(const std::shared_ptr<Serving>& serving) {
    if (serving->forks_ != forks()) return;
    Network::current().post([serving] {
      if (serving->stopped_) return;
      serving->last_ = serving;
      serving->server_->drain();
      serving->server_->drain();
    });
  }
  void drain() {
    if (!stopped_) server_->drain();
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
  std::size_t live_sessions() const { return server_->live_sessions(); }
  Batcher::Stats stats() const { return server_->stats(); }

  std::string address;
  std::uint16_t port = 0;

 private:
  static void say(const Done<void>& done) {
    Outcome<void> outcome;
    outcome.set_value();
    done(std::move(outcome));
  }
  void stop() {
    stopped_ = true;
    for (const auto& [number, done] : std::exchange(waiting_, {})) say(done);
    // Behind the server's own call: what it destroys is not under way then.
    if (last_ != nullptr) asio::post(context_, [last = std::move(last_)] {});
  }

  int forks_;
  asio::io_context& context_;
  std::unique_ptr<Server> server_;
  bool stopped_ = false;
  std::shared_ptr<Serving> last_;
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

std::shared_ptr<Serving> make_server(const SharedProgram& program, const std::string& address, int port, const std::string& config,
                                     int threads, const std::string& backend, std::size_t max_rows, std::size_t sessions, double idle,
                                     const std::vector<std::string>& origins, const std::map<std::string, std::string>& states,
                                     const std::map<std::string, nb::object>& constants,
                                     const std::map<std::string, std::vector<std::int64_t>>& rows) {
  if (port < 0 || port > 65535) throw ArgumentError(fmt::format("serve: expected a port of 0 … 65535, found {}", port));
  if (threads < 1) throw ArgumentError(fmt::format("serve: expected 1 thread or more, found {}", threads));
  if (!(idle > 0)) throw ArgumentError(fmt::format("serve: expected more than 0 seconds of idleness, found {}", idle));
  const std::optional<Backend> chosen = backend_of(backend);
  if (!chosen) throw ArgumentError(fmt::format("serve: expected the backend auto, interpreted, captured or fused, found '{}'", backend));
  ServerOptions options;
  options.address = address;
  options.port = static_cast<std::uint16_t>(port);
  options.max_rows = max_rows;
  options.limits.sessions = sessions;
  options.limits.idle = std::chrono::milliseconds(static_cast<std::int64_t>(std::min(idle, 1e9) * 1000));
  options.origins = origins;
  options.backend = *chosen;
  std::map<std::string, Tensor> fixed;
  for (const auto& [name, value] : constants) fixed.emplace(name, copy_of(tensor_from(value)));
  std::map<std::string, DDim> extents;
  for (const auto& [name, row] : rows) extents.emplace(name, DDim(std::span<const std::int64_t>(row)));
  StreamConfig stream = config.empty() ? StreamConfig() : read_stream_config(config);
  {
    const SignalsBlocked blocked;
    options.devices.push_back(make_cpu_device(threads, 4));
  }
  auto model = std::make_shared<const ServedModel>(*program.program, std::move(stream),
                                                   std::vector<std::pair<std::string, std::string>>(states.begin(), states.end()),
                                                   std::move(fixed), std::move(extents));
  return std::make_shared<Serving>(std::move(model), std::move(options));
}

OperationObject wait_for_stop(const ServerObject& self, const LoopObject& loop) {
  static std::uint64_t last = 0;  // used with the GIL held
  const std::uint64_t number = ++last;
  const auto begin = [&](const Ref<Run>&, auto done) {
    Network::current().post(
        [serving = self.serving, number, done = Done<void>(std::move(done))]() mutable { serving->when_stopped(number, std::move(done)); });
  };
  const auto cancel = [serving = self.serving, number] { Network::current().post([serving, number] { serving->forget(number); }); };
  return start_elsewhere<void>(loop, "server", [] { return nb::none(); }, begin, cancel);
}

template <class F>
auto asked(const ServerObject& self, F f) {
  std::optional<decltype(f(*self.serving))> answer;
  Network::current().call([&] { answer.emplace(f(*self.serving)); });
  return *std::move(answer);
}

void bind_server(nb::module_& m) {
  nb::class_<ServerObject>(m, "_Server", "The side of C++ of millrace.live.Server.")
      .def(
          "__init__",
          [](ServerObject* self, const SharedProgram& program, const std::string& address, int port, const std::string& config, int threads,
             const std::string& backend, std::size_t max_rows, std::size_t sessions, double idle, const std::vector<std::string>& origins,
             const std::map<std::string, std::string>& states, const std::map<std::string, nb::object>& constants,
             const std::map<std::string, std::vector<std::int64_t>>& rows) {
            new (self) ServerObject(
                make_server(program, address, port, config, threads, backend, max_rows, sessions, idle, origins, states, constants, rows));
          },
          "program"_a, "address"_a, "port"_a, "config"_a, "threads"_a, "backend"_a, "max_rows"_a, "sessions"_a, "idle"_a, "origins"_a,
          "states"_a, "constants"_a, "rows"_a)
      .def_prop_ro("address", [](const ServerObject& self) { return self.serving->address; })
      .def_prop_ro("port", [](const ServerObject& self) { return self.serving->port; })
      .def_prop_ro("live_sessions",
                   [](const ServerObject& self) { return asked(self, [](const Serving& serving) { return serving.live_sessions(); }); })
      .def_prop_ro("stats",
                   [](const ServerObject& self) {
                     const Batcher::Stats stats = asked(self, [](const Serving& serving) { return serving.stats(); });
                     return std::map<std::string, std::uint64_t>{{"ticks", stats.ticks}, {"rows", stats.rows}, {"largest", stats.largest}};
                   })
      .def("drain", [](const ServerObject& self) { Network::current().post([serving = self.serving] { serving->drain(); }); })
      .def("stopped", &wait_for_stop, "loop"_a);
}

// ---- Connections of clients ----

/// A stream of messages, used and destroyed on the network's thread.
struct Connection {
  std::unique_ptr<MessageStream> stream;
};

struct ConnectionObject {
  std::shared_ptr<Connection> connection;
  int made_after_forks = forks();

  explicit ConnectionObject(std::shared_ptr<Connection> of) : connection(std::move(of)) {}
  ~ConnectionObject() {
    if (connection == nullptr || made_after_forks != forks()) return;
    Network::current().post([last = std::move(connection)] {});
  }
  ConnectionObject(ConnectionObject&&) noexcept = default;
  ConnectionObject& operator=(ConnectionObject&&) noexcept = default;
};

void abort(const std::shared_ptr<Connection>& connection) {
  Network::current().post([connection] { connection->stream->abort(); });
}

OperationObject connect(const LoopObject& loop, const std::string& url) {
  const StreamUrl to = parse_stream_url(url);
  Limits limits;
  limits.message = Limits::message_ceiling;
  const auto begin = [&](const Ref<Run>&, auto done) {
    async_connect_stream(Network::current().context().get_executor(), to, limits,
                         [url, done = std::move(done)](error_code error, std::unique_ptr<MessageStream> stream) mutable {
                           Outcome<std::shared_ptr<Connection>> outcome;
                           if (error)
                             outcome.set_error(network_error("connect to " + url, error));
                           else
                             outcome.set_value(std::make_shared<Connection>(std::move(stream)));
                           done(std::move(outcome));
                         });
  };
  const auto convert = [](std::shared_ptr<Connection> made) { return nb::cast(ConnectionObject(std::move(made))); };
  // Not taken back: a connection attempt ends by itself within the limit of the handshake.
  return start_elsewhere<std::shared_ptr<Connection>>(loop, "connect", convert, begin, [] {});
}

OperationObject write_messages(const ConnectionObject& self, const LoopObject& loop,
                               const std::vector<std::pair<bool, nb::bytes>>& messages) {
  std::vector<Message> all;
  for (const auto& [text, bytes] : messages)
    all.emplace_back(text ? MessageKind::text : MessageKind::binary, std::string(bytes.c_str(), bytes.size()));
  const auto begin = [&](const Ref<Run>&, auto done) {
    Network::current().post([connection = self.connection, all = std::move(all), done = std::move(done)]() mutable {
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
    Network::current().post([connection = self.connection, done = std::move(done)]() mutable {
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

Tensor tensor_of(DType dtype, const std::vector<std::int64_t>& dims, const nb::bytes& bytes) {
  Tensor made(dtype, DDim(std::span<const std::int64_t>(dims)));
  if (made.bytes() != bytes.size())
    throw ParseError(
        fmt::format("result: expected {} bytes for {}{}, found {}", made.bytes(), name_of(dtype), made.dims().to_string(), bytes.size()));
  made.storage()->mark_written();
  if (bytes.size() > 0) std::memcpy(made.raw_mutable(), bytes.c_str(), bytes.size());
  return made;
}

/// Rows as they go over the network, of the dtype and the extents that the server told.
nb::bytes bytes_of(nb::handle rows, const std::string& name, DType dtype, const std::vector<std::int64_t>& row) {
  const DDim extents{std::span<const std::int64_t>(row)};
  const VarType type(dtype, extents.inserted(0, DDim::unknown));
  const Value value = value_from(rows, name, type);
  check_feed(name, type, value);
  const Tensor& tensor = value.tensor().tensor();
  return nb::bytes(static_cast<const char*>(tensor.bytes() > 0 ? tensor.raw() : ""), tensor.bytes());
}

void bind_connection(nb::module_& m) {
  nb::class_<ConnectionObject>(m, "_Connection", "Messages to and from a server, for millrace.live.")
      .def("write", &write_messages, "loop"_a, "messages"_a)
      .def("read", &read_message, "loop"_a)
      .def("abort", [](const ConnectionObject& self) { abort(self.connection); });
  m.def("_connect", &connect, "loop"_a, "url"_a);
  m.def("_tensor_of", &tensor_of, "dtype"_a, "shape"_a, "elements"_a);
  m.def("_bytes_of", &bytes_of, "rows"_a, "name"_a, "dtype"_a, "row"_a);
}

}  // namespace

void bind_serving(nb::module_& m) {
  bind_server(m);
  bind_connection(m);
}

}  // namespace millrace::python
