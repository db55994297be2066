// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/streaming/protocol/control.h>
#include <millrace/streaming/protocol/limits.h>
#include <millrace/streaming/protocol/message.h>
#include <millrace/streaming/transport/asio.h>
#include <millrace/streaming/transport/connection.h>

namespace millrace {

/// The events that one session of a client sends.
struct ClientPlan {
  StartMessage start;
  std::string input;            ///< that the bytes are for; only looked at where the server has several
  std::string bytes;            ///< rows, or frames of samples
  std::size_t unit_bytes = 1;   ///< of a row or a frame: paced pieces hold whole ones
  double units_per_second = 0;  ///< at speed 1; 0: has no pace of its own, and is sent as fast as the server takes it
  /// In place of `bytes`: whole messages between `start` and `end`, sent one behind the other. For inner sequences, several inputs, `flush`
  /// and `reset`.
  std::vector<Message> script;
  bool save = false;  ///< `save` in place of `end`: ClientRecord::state then has where the sequence stands, for `start.state`

  ClientPlan() = default;
};

/// The results of one session. Everything but `error` arrived before it.
struct ClientRecord {
  using Clock = std::chrono::steady_clock;

  std::optional<StartedMessage> started;
  std::vector<std::string> outputs;         ///< for each of `started->outputs`: its rows, raw little-endian
  std::vector<Clock::time_point> received;  ///< of each step
  std::vector<SegmentMessage> segments;
  std::vector<std::uint64_t> flushed;  ///< what each `flushed` said
  std::vector<std::uint64_t> resets;   ///< what each `reset` said: the steps before it
  std::optional<std::uint64_t> steps;  ///< what `ended` said, or `saved` in its place
  std::optional<std::string> state;    ///< of a plan that is saved
  std::size_t resumed = 0;             ///< connections that were lost and replaced, by the session's ticket
  std::size_t restarted = 0;           ///< and by a start, from the state of a draining server or from the beginning
  std::string error;                   ///< one line; empty: ended as it should
  Clock::time_point begun;             ///< when unit 0 was due; unit k is due k / (units_per_second × speed) later

  ClientRecord() = default;
};

struct ClientProgress {
  std::size_t sessions = 0;
  std::size_t over = 0;
  std::uint64_t bytes = 0;  ///< of all plans
  std::uint64_t sent = 0;
  std::uint64_t steps = 0;  ///< answered so far
};

struct ClientOptions {
  /// 1: units are sent when they are due, as a live source would; 2: twice as fast; 0: as fast as the server takes them.
  double speed = 0;
  std::chrono::milliseconds paced_piece{20};                   ///< a piece is sent when its last unit is due
  std::size_t piece_bytes = std::size_t{16} << 10;             ///< otherwise
  std::function<std::size_t(std::size_t session)> next_piece;  ///< in place of `piece_bytes`, asked before every piece
  std::function<void(const ClientProgress&)> on_progress;      ///< after every message; must not throw
  /// After every result of a step, once for each, with the seconds since the session's unit 0 was due; must not throw.
  std::function<void(std::size_t session, const ResultMessage& result, double seconds)> on_result;
  Limits limits;
  std::string token;                     ///< that the server is shown; empty: none
  std::shared_ptr<const TlsClient> tls;  ///< for tcps and wss; none: trusts the system's authorities
  bool token_in_clear = false;           ///< see ConnectOptions
  /// The time in which a session that has started tries to get another connection when it lost its own, or its server goes away; 0: it ends with an error.
  /// With a ticket it goes on where it was, with the state of a draining server there; else it starts over and sends all again. The record is that of
  /// a session that was never disturbed.
  std::chrono::milliseconds reconnect{0};
  /// A connection is lost when for so long nothing at all came of a server that owes the end of the session, or took nothing of a message to it; 0: never.
  std::chrono::milliseconds silence{0};

  ClientOptions() = default;
  ConnectOptions connect_options() const;
};

using ClientHandler = boost::asio::any_completion_handler<void(std::vector<ClientRecord>)>;

void stream_plans(const boost::asio::any_io_executor& executor, StreamUrl url, std::vector<ClientPlan> plans, ClientOptions options,
                  ClientHandler handler);

/// Sends `plans` as concurrent sessions and completes with one record for each, in their order. Data flows once all of them are started (or
/// have failed: a server has `limits.handshake` to answer); from then on pieces of the sessions take turns. A session that fails does not
/// disturb the others. Replies are kept in memory. Associated executor, allocator and cancellation (terminal: every session is cut off) are
/// honoured. Run the executor on one thread.
template <class Token>
auto async_stream_plans(const boost::asio::any_io_executor& executor, StreamUrl url, std::vector<ClientPlan> plans, ClientOptions options,
                        Token&& token) {
  return boost::asio::async_initiate<Token, void(std::vector<ClientRecord>)>(
      [](auto handler, boost::asio::any_io_executor on, StreamUrl to, std::vector<ClientPlan> sent, ClientOptions how) {
        stream_plans(on, std::move(to), std::move(sent), std::move(how), std::move(handler));
      },
      token, executor, std::move(url), std::move(plans), std::move(options));
}

/// Streams the plans on an io_context of its own: blocks until the last session has ended.
std::vector<ClientRecord> stream_plans(const StreamUrl& url, std::vector<ClientPlan> plans, ClientOptions options = {});

/// Asks a server what it takes and gives, by a session without data. IoError says why there is no answer. Of `options`, those of a connection. `model`: which
/// one of the server's; empty: that of the address, else the default.
StartedMessage describe_server(const StreamUrl& url, const ClientOptions& options = {}, const std::string& model = {});

}  // namespace millrace
