// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/distributed/heartbeat.h>
#include <millrace/runtime/distributed/rendezvous.h>

namespace millrace::app {

/// The ranks of a job in several processes, as the environment of this one says (rank_environment.h): over MPI where `mpirun` started them, else over
/// TCP. A heartbeat aborts the communicator when a rank dies or stops.
class JobRanks {
 public:
  /// Null where this process is alone. Blocks until all ranks have met.
  static std::unique_ptr<JobRanks> join();

  Communicator& communicator() const noexcept { return *communicator_; }

 private:
  JobRanks() = default;
  std::unique_ptr<Rendezvous> meeting_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

/// Replaces this process by `mpirun -n RANKS` of itself with the arguments of `argv`, less `--ranks`. Sets the variables that Open MPI wants of root and of
/// machines with fewer cores than ranks, and a free port as MASTER_PORT. UnsupportedError in a build without MPI; IoError where there is no `mpirun`.
[[noreturn]] void become_ranks(int ranks, char** argv);

}  // namespace millrace::app
