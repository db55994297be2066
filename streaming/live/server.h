// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/runtime/loops/backend.h>
#include <millrace/streaming/live/admission.h>
#include <millrace/streaming/live/batcher.h>
#include <millrace/streaming/live/served_model.h>
#include <millrace/streaming/live/served_route.h>
#include <millrace/streaming/live/server_counts.h>
#include <millrace/streaming/live/state_key.h>
#include <millrace/streaming/protocol/limits.h>
#include <millrace/streaming/transport/asio.h>
#include <millrace/streaming/transport/http_page.h>
#include <millrace/tensor/device.h>

namespace millrace {

class ByteStream;
class TlsServer;
class TokenSet;
class Tracer;

struct ServerOptions {
  std::string address = "127.0.0.1";  ///< another than a loopback address takes `tls` and `tokens`, or `insecure`
  std::uint16_t port = 0;             ///< 0: a free one
  Limits limits;
  std::vector<std::string> origins;              ///< of browsers that may connect, besides those of the server's own page
  std::shared_ptr<const TlsServer> tls;          ///< none: bytes are not encrypted. `reload` it on the context's thread
  std::shared_ptr<const TokenSet> tokens;        ///< none: no token is asked for. Likewise
  std::shared_ptr<const HttpPages> pages;        ///< for a browser that asks for no WebSocket
  bool insecure = false;                         ///< others than this machine's programs may connect without TLS and a token
  std::size_t max_rows = 4096;                   ///< of one tick
  std::vector<std::shared_ptr<Device>> devices;  ///< a session lives on one of them; none: a CPU device with one thread
  Backend backend = Backend::automatic;          ///< of ticks, as StateSlab takes it
  std::chrono::milliseconds drain_limit{4000};
  Admission::Options admission;  ///< of a server's only model; see ServedRoute
  std::shared_ptr<const StateKey>
      state_key;  ///< seals the states of sessions; none: a key of the server's own, whose states nobody else takes
  Tracer* tracer = nullptr;

  ServerOptions() = default;
};

/// Serves one or several models to many live sessions: connections on the io_context, which one thread runs; ticks on a thread of their own, so that
/// rows that arrive meanwhile join the next. Nothing polls: an idle server uses no CPU. Use it on the io_context's thread. Must outlive the
/// context's work: destroy it in or after `on_stopped`, or after the context has stopped. A handler may destroy its server.
///
/// A client of several models names one in its `start`, or by the address of a WebSocket, /NAME. A client that names none gets the first. Each model has batchers,
/// states and a seal of its own. Limits are the server's. Where capacities are known, what the sessions of all models need is at most the whole machine.
///
/// A session begins on the device with the fewest sessions. Each device has a thread for its ticks, on which models take turns. When a device is lost (a kernel trapped), its
/// sessions end with `lost` and the reason, sessions elsewhere go on, and new ones begin where there is a place left, or are refused with `lost`.
///
/// An exception in the work of one connection, such as memory that ran out, ends that connection alone, with `failed`. For one that leaves an operation of the
/// sockets, run the context by `run_servers`.
class Server {
 public:
  /// Listens at once. IoError, ArgumentError: see Listener.
  Server(boost::asio::io_context& context, std::shared_ptr<const ServedModel> model, ServerOptions options);
  /// Serves several models, of which the first is the default. ArgumentError for none, a name that stands twice, or one that is none (is_route_name).
  Server(boost::asio::io_context& context, std::vector<ServedRoute> routes, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string address() const;
  std::uint16_t port() const;
  /// Serves a connection that the caller accepted, on the context's executor, from `peer`, as a connection of the listener, but without `tls`.
  /// A connection that comes after `drain` is closed.
  void serve(ByteStream bytes, const boost::asio::ip::address& peer);
  /// Stops listening, reads no more, answers what has arrived, tells every session that the server goes away, and closes. A second call
  /// closes at once.
  void drain();
  /// Called on the context once everything is closed after `drain`.
  std::function<void()> on_stopped;
  /// Called on the context when a place was lost and its sessions were told: what it was lost by, how many they were, and how many places are
  /// left.
  std::function<void(const std::string& why, std::size_t sessions, std::size_t left)> on_lost;

  struct SessionEnd {
    std::uint64_t number = 0;  ///< of the connection, from 1
    std::string address;
    std::string label;         ///< what the client calls it
    std::string model;         ///< the name of its model; empty before its start
    std::string_view outcome;  ///< "ended", "gone", or the name of an error
    std::string why;           ///< of an error
    std::uint64_t steps = 0;
    double seconds = 0;  ///< since the connection was accepted
    bool started = false;
  };
  /// Called on the context when a session is over, and for a connection that was refused or let go before its start.
  std::function<void(const SessionEnd&)> on_session_end;
  /// Called on the context when descriptors ran short, with why.
  std::function<void(const std::string& why)> on_scarce;

  std::size_t live_sessions() const noexcept;
  /// Connections that have not started.
  std::size_t newcomers() const noexcept;
  /// Ticks of all places.
  Batcher::Stats stats() const noexcept;
  /// The numbers by which sessions are admitted: steps a second that this server holds, and that its sessions ask for.
  struct Load {
    double capacity = 0;  ///< 0: not known
    double asked = 0;
  };
  /// The load of the default model.
  Load load() const noexcept;
  /// The part of the machine that the sessions of all models are taken to need; 1: no other is admitted.
  double used() const noexcept;
  struct PlaceStats {
    std::string model;  ///< its name
    Place place;
    Batcher::Stats ticks;
    std::size_t sessions = 0;
    std::string lost{};           ///< what the place was lost by; empty while it is there
    double seconds_a_row = 0;     ///< the recent time of a row of a tick; 0 before the first
    std::size_t state_bytes = 0;  ///< of the sessions' states
  };
  /// One for each model and device: the first model's in the order of `devices`, then the next one's.
  std::vector<PlaceStats> places() const;
  struct ModelStats {
    std::string name;
    std::size_t sessions = 0;      ///< that have started and are not over
    std::size_t waiting_rows = 0;  ///< of them, about
    Load load;
    const ModelCounts* counts = nullptr;  ///< the server's
  };
  /// In the order of the routes.
  std::vector<ModelStats> models() const;
  /// Counts since the server began.
  const ServerCounts& counts() const noexcept;
  /// A session that has started and is not over.
  struct SessionInfo {
    std::uint64_t number = 0;  ///< of the connection
    std::string address;
    std::string label;
    std::string model;
    std::uint64_t steps = 0;
    std::size_t waiting_rows = 0;
    double seconds = 0;  ///< since the connection was accepted
  };
  /// In the order of their numbers.
  std::vector<SessionInfo> sessions() const;
  std::size_t max_sessions() const noexcept;
  /// Why a start of any model would be refused for now, by what its sessions need: the capacity, or a session's weights of its own. Empty: one would be taken.
  std::string refuses_all() const;
  /// The rows that wait in all sessions, about.
  std::size_t waiting_rows() const;
  bool draining() const noexcept;
  /// The backend of ticks (StateSlab::backend) on the first place. Asked for while no tick runs: before the first session, or after `on_stopped`.
  std::string backend() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// As `context.run()`. Where an operation of the sockets throws, such as for want of memory, it calls `on_error` with what and goes on: the server's connection
/// whose operation it was ends.
void run_servers(boost::asio::io_context& context, const std::function<void(const std::string& what)>& on_error = {});

}  // namespace millrace
