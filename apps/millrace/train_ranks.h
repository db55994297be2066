// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/distributed/rank_world.h>

namespace millrace::app {

/// Whether this process is a rank that `mpirun` has started.
bool started_by_mpirun();

/// The ranks of a job in several processes: over MPI where `mpirun` started them, else over TCP. Null where this process is alone.
std::unique_ptr<RankWorld> join_ranks();

/// Replaces this process by `mpirun -n RANKS` of itself with the arguments of `argv`, less `--ranks`. Sets the variables that Open MPI wants of root and of
/// machines with fewer cores than ranks, and a free port as MASTER_PORT. UnsupportedError in a build without MPI; IoError where there is no `mpirun`.
[[noreturn]] void become_ranks(int ranks, char** argv);

}  // namespace millrace::app
