// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace millrace::bench {

/// The work of a crowd of live clients.
struct Crowd {
  std::string url;
  std::int64_t sessions = 1;
  std::int64_t windows = 1;  ///< of 512 samples, that a chunk holds
  double warm_up = 1;        ///< seconds that do not count
  double seconds = 3;        ///< seconds that do
};

/// The observations of the clients. The lag of a reply runs from the instant when its chunk was due, whether or not it left then.
struct CrowdSaw {
  double p50_ms = 0;
  double p99_ms = 0;  ///< replies that did not come within half a second count as never
  std::int64_t expected = 0;
  std::int64_t received = 0;
  std::int64_t replies = 0;  ///< with those of the warm-up
};

/// Sessions over TCP on the calling thread, each with s16 noise at 16,000 Hz in chunks of its own random phase, and binary replies. Prints
/// "started" when all sessions are, and begins then. IoError when one cannot start or ends early.
CrowdSaw run_crowd(const Crowd& crowd);

/// `millrace-bench live-client URL SESSIONS WINDOWS WARM_UP SECONDS`: prints "started", then "saw P50 P99 EXPECTED RECEIVED REPLIES".
int live_client_command(const Crowd& crowd);

}  // namespace millrace::bench
