// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include <millrace/runtime/distributed/rank_world.h>

namespace millrace::app {

/// Whether this process is a rank that `mpirun` has started.
bool started_by_mpirun();

/// Whether stdout is a terminal in which something may be drawn. mpirun gives rank 0 a terminal of its own and hands on what it writes, so there MILLRACE_TERMINAL,
/// which `start_ranks` sets to 0 or 1, says what mpirun writes to; without it, nothing is drawn.
bool draws_in_terminal();

/// The ranks of a job in several processes: over MPI where `mpirun` started them, else over TCP. Null where this process is alone.
std::unique_ptr<RankWorld> join_ranks();

/// For a rank that mpirun started and that has failed, before it says so. Ranks of one job meet the same errors (a file that is not there, a loss that is not
/// finite), and one line is enough: the lowest rank's. The others wait here for the SIGTERM by which mpirun ends them a second later, which sets `asked`: true. False after
/// 3 seconds for each lower rank, of 4 at most.
bool said_by_another(int rank, const std::atomic<bool>& asked);

/// Runs `mpirun -n RANKS` of this program with the arguments of `argv`, less `--ranks`, and gives its exit code. Sets the variables that Open MPI wants of root and
/// of machines with fewer cores than ranks, a free port as MASTER_PORT, and MILLRACE_TERMINAL. The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 reaches the ranks as a
/// SIGUSR1, for which mpirun waits, and a second one ends it. mpirun ends when this process does. UnsupportedError in a build without MPI; IoError where there is no `mpirun`.
int start_ranks(int ranks, char** argv);

}  // namespace millrace::app
