// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <millrace/runtime/distributed/communicator.h>

namespace millrace {

struct MpiOptions {
  std::string name = "mpi";
  /// The time that an operation may take from the moment this rank has come to it.
  std::chrono::milliseconds deadline{600'000};
};

/// "Open MPI 4.1.4", or "not in this build".
std::string mpi_status();

/// This rank of MPI_COMM_WORLD: the processes that one `mpirun` started, or a world of one without it. It exchanges tensors that the host can
/// reach. All ranks make the same communicators in the same order.
///
/// One thread of the process makes all calls of MPI, for all communicators: it initialises MPI with the first and finalises it with the last of
/// them; MPI cannot be initialised again after that (CommunicationError). With more than one rank the thread looks for progress: it spins 50 µs,
/// then sleeps up to 1 ms at a time, and up to 20 ms while nothing is under way.
///
/// Sums of floating-point values of more than two ranks are made in the order of the ranks: each rank receives its share of the values of
/// all, adds it, and gives the sums to the others. Small values go to all ranks as they are.
///
/// Differences to `Communicator`:
/// - `duplicate` is a collective of its communicator.
/// - A rank that leaves early shows as a DeadlineError of those that wait for it. `abort` reaches the ranks that are alive.
/// - After an error, or `abort`, the process does not finalise MPI, so that `mpirun` ends the job with an error.
/// - A message has at most 2³¹ − 1 elements (ArgumentError).
///
/// Errors: UnsupportedError in a build without MPI; CommunicationError with MPI's own text; ArgumentError for a deadline that is not positive;
/// BlockingError on a thread that runs tasks, because the call waits for MPI_Init.
std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options = {});

}  // namespace millrace
