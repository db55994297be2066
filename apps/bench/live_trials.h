// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <bench/library/registry.h>
#include <bench/live_client.h>

namespace millrace::bench {

/// The load of a server, and when it holds it.
struct LiveLoad {
  std::vector<std::string> served;  ///< words of `millrace serve` that say what
  Crowd crowd;                      ///< without its address and the number of its sessions
  double most_p99_ms = HUGE_VAL, most_p999_ms = HUGE_VAL;
};

/// Seconds of CPU that a process has used: by its first thread, which has the sockets, and by the others, which compute.
struct CpuUsed {
  double transport = 0;
  double arithmetic = 0;
};

struct Trial {
  CrowdSaw saw;
  CpuUsed a_reply;         ///< of the server
  double server_busy = 0;  ///< the share of a core that it used
  double peak_bytes = 0;   ///< of the server's memory that was resident
  bool holds = false;      ///< without an error, in time
};

/// "p50 lag 1.0 ms, p99 2.0 ms".
std::string lags_of(const CrowdSaw& saw);

/// A server and its clients, each on a core. IoError when one of them does not start. Where `context` is quick, a moment each.
class Trials {
 public:
  Trials(const Context& context, LiveLoad load);

  /// One that does not hold is repeated once, and the second counts: something else on the machine may have spoiled the first.
  Trial run(std::int64_t sessions) const;
  /// The most sessions that hold, to some per cent, with what was seen there. IoError when not even the fewest that are tried hold.
  std::pair<std::int64_t, Trial> bisect() const;

 private:
  Trial run_once(std::int64_t sessions) const;

  const Context& context_;
  LiveLoad load_;
  std::int64_t most_;  ///< sessions for which a process may have descriptors
};

/// Emits the processor time of a reply on the server, by threads: rows of `id` that are parts of the row above.
void emit_costs(const Context& context, const std::string& id, const std::string& shape, const Trial& trial);

}  // namespace millrace::bench
