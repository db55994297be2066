// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <millrace/streaming/protocol/control.h>

namespace millrace::bench {

/// The noise that clients send.
enum class Noise : std::uint8_t {
  s16,  ///< samples of sound
  f32   ///< elements of rows
};

/// The work of a crowd of live clients.
struct Crowd {
  std::string url;
  std::int64_t sessions = 1;
  Noise noise = Noise::f32;
  std::int64_t step_elements = 1;  ///< that the server steps on: samples, or elements of a row
  std::int64_t steps = 1;          ///< that a message holds
  double step_seconds = 0.04;      ///< a message is due each `steps` times as many
  ReplyFormat reply = ReplyFormat::binary;
  double warm_up = 1;  ///< seconds that do not count
  double seconds = 3;  ///< seconds that do
};

/// The observations of the clients. The lag of a reply runs from the instant when its message was due, whether or not it left then; a reply that did not come
/// within half a second of the end counts as never.
struct CrowdSaw {
  double p50_ms = 0, p99_ms = 0, p999_ms = 0;
  std::int64_t expected = 0;  ///< replies that were due
  std::int64_t received = 0;
  std::int64_t replies = 0;  ///< with those of the warm-up
  double busy = 0;           ///< the share of a core that the clients used
  std::int64_t errors = 0;   ///< sessions that could not start or ended early, replies that were none, came twice or out of order
  std::string why;           ///< of the first error
};

/// Sessions over TCP on the calling thread, each with noise in messages of its own random phase. Prints "started" when all sessions are, or failed, and begins
/// then.
CrowdSaw run_crowd(const Crowd& crowd);

/// The words behind `millrace-bench live-client`, made and read: URL SESSIONS s16|f32 STEP_ELEMENTS STEPS STEP_SECONDS binary|json WARM_UP SECONDS.
std::vector<std::string> words_of(const Crowd& crowd);
Crowd crowd_of(const std::vector<std::string>& words);
/// The last line that the command prints, made and read: "saw P50 P99 P999 EXPECTED RECEIVED REPLIES BUSY ERRORS WHY". IoError for another line.
std::string line_of(const CrowdSaw& saw);
CrowdSaw saw_of(const std::string& line);

/// `millrace-bench live-client`: prints "started", then what the crowd saw.
int live_client_command(const std::vector<std::string>& words);

}  // namespace millrace::bench
