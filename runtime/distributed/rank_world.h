// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/distributed/heartbeat.h>
#include <millrace/runtime/distributed/rank_environment.h>
#include <millrace/runtime/distributed/rendezvous.h>

namespace millrace {

/// The ranks of a job in several processes. A heartbeat aborts the communicator when a rank dies or stops.
class RankWorld {
 public:
  /// Makes the communicator once all ranks have met.
  using Connect = std::function<std::unique_ptr<Communicator>(Rendezvous&)>;
  /// `where` says which rank this process is; null where it is alone, or `where` is nothing. Blocks until all ranks have met: not on a thread that
  /// runs tasks (BlockingError). `connect` null: over TCP. Errors are those of `rank_environment`, Rendezvous, Heartbeat and `connect`.
  static std::unique_ptr<RankWorld> join(const std::optional<RankEnvironment>& where = rank_environment(),
                                         const Connect& connect = nullptr);

  Communicator& communicator() const noexcept { return *communicator_; }

 private:
  RankWorld() = default;
  std::unique_ptr<Rendezvous> meeting_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace millrace
