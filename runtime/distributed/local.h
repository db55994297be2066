// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/task/executor.h>

namespace millrace {

class Tracer;

struct LocalOptions {
  std::string name = "local";
  /// The time that an operation may wait for its other ranks, from the first that came, on the clock of `executor` (ArgumentError without one,
  /// which must outlive the communicators).
  std::optional<Duration> deadline;
  Executor* executor = nullptr;
  /// Spans of category "collective": from the first rank's call to the end.
  Tracer* tracer = nullptr;

  LocalOptions() = default;
};

/// The ranks of a world inside one process: threads, tasks of one thread, several places, in any mixture. Communicator r of the result is
/// that of rank r; each may go to a thread of its own. An operation happens in the host thread that brought the last of it about; elements on
/// a CUDA device are copied there, on the stream of the rank that takes them, which must not be one that waits for the operation. Sums are made
/// where the host may look (PlaceError). The streams of the ranks go on meanwhile. A rank that is not there yet keeps nobody from calling.
/// ArgumentError below 1 rank.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int world_size, LocalOptions options = {});

}  // namespace millrace
