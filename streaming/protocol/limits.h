// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

namespace millrace {

/// The most that one peer may cost. Every field has a flag of `millrace serve`.
struct Limits {
  Limits() = default;

  std::size_t message = std::size_t{1} << 20;       ///< bytes of one message's payload; at most `message_ceiling`
  std::size_t control = std::size_t{64} << 10;      ///< bytes of a control message
  std::size_t start = std::size_t{16} << 10;        ///< bytes of `start`, and so what a connection may cost before it
  std::size_t request_head = std::size_t{8} << 10;  ///< bytes of an HTTP request head
  std::size_t chunks_in = 32;                       ///< messages a session may have queued before it is not read any more
  std::size_t queued_in = std::size_t{256} << 10;   ///< bytes likewise; one larger message is taken when the queue is empty
  std::size_t queued_out = std::size_t{256} << 10;  ///< bytes of replies waiting before the session stops stepping
  std::size_t held_out = std::size_t{64} << 10;     ///< bytes of replies that were sent and not acknowledged, where sessions can be resumed
  std::size_t sessions = 1024;                      ///< live sessions of a server: those that have started
  std::optional<std::size_t> sessions_per_address;  ///< of one peer address, whichever; none: 64, and any number of a loopback address
  std::size_t newcomers = 0;  ///< connections that have not started: the oldest goes for one more; 0: as `sessions`, but 256 or more
  std::size_t waiting_rows = std::size_t{1} << 20;  ///< of all sessions, about: more, and nobody else may start
  std::chrono::milliseconds backlog{5000};          ///< the same as time: how long the server needs for them, by what it has measured
  std::chrono::milliseconds handshake{5000};        ///< from accepting a connection to its `start`
  std::chrono::milliseconds stuck_writer{5000};     ///< a reply that the peer does not take
  std::chrono::milliseconds idle{60000};            ///< a session from which nothing arrives
  std::chrono::milliseconds resume{0};              ///< how long a session that lost its connection waits for its ticket; 0: not at all

  /// Above this a plain TCP length would look like an HTTP request line.
  static constexpr std::size_t message_ceiling = std::size_t{16} << 20;
};

}  // namespace millrace
