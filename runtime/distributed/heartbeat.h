// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <millrace/runtime/distributed/rendezvous.h>

namespace millrace {

struct HeartbeatOptions {
  /// Time between two signs of life.
  std::chrono::milliseconds interval{1'000};
  /// A rank that gives no sign of life for so long counts as lost.
  std::chrono::milliseconds silence{8'000};
  /// For the connections.
  std::chrono::milliseconds meeting{60'000};
};

/// Notices ranks that die or stop, for transports that do not (MPI, NCCL). Each rank has one connection to rank 0, over which both sides give signs of
/// life. A connection that ends without a farewell is a dead rank, at once; silence is a stopped rank, after `silence`. Rank 0 tells the others
/// which rank is lost.
///
/// `lost` is called once at most, on a thread of the heartbeat, with a sentence that names the rank: "rank 2 has died: its connection ended",
/// "rank 2 gave no sign of life for 8000 ms". It must not throw, and must not destroy the heartbeat. Typical use: `communicator->abort(sentence)`.
///
/// The constructor blocks until all ranks are connected: not on a thread that runs tasks (BlockingError). Destruction says farewell, and does not
/// wait for other ranks. The thread sleeps between signs of life; a world of one has none.
///
/// Errors: DeadlineError names the ranks that did not come; ArgumentError unless 0 < interval < silence; errors of the rendezvous.
class Heartbeat {
 public:
  Heartbeat(Rendezvous& ranks, std::function<void(const std::string& sentence)> lost, HeartbeatOptions options = {});
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace millrace
