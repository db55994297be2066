// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include <millrace/runtime/distributed/partition.h>
#include <millrace/runtime/distributed/rendezvous.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/tensor/device.h>

namespace millrace {

struct ProcessRunOptions {
  RunOptions run;
  /// For the connections.
  std::chrono::milliseconds meeting{60'000};
  /// The time that a rank may wait for a value of another.
  std::chrono::milliseconds deadline{600'000};
  /// Blocks of threads that NCCL may take of the device for each route; 0: as many as it likes.
  int max_ctas = 2;
};

/// Runs the part of this process, on `device`, and blocks: the ranks are processes, which must have met in `ranks`, one for each part. Words
/// and what is on a CPU go over TCP (tcp.h), what is on CUDA devices over NCCL (nccl.h), a communicator for each route. All ranks give the same
/// program and the same feeds, and are on CPUs, or all on CUDA devices (MismatchError, on all of them). Rank 0's result has the outputs.
///
/// When a rank fails, ends or is late, all others end with an error that names it: RankError, DeadlineError, AbortedError, which quotes the
/// error of a rank that failed. BlockingError on a thread that runs tasks; UnsupportedError for CUDA devices in a build without NCCL; ArgumentError
/// unless there is a rank for each part; else as `make_tcp_communicator` and `make_nccl_communicator`.
RunResult run_as_rank(Rendezvous& ranks, const Partition& partition, std::shared_ptr<Device> device, const Feeds& feeds,
                      const ProcessRunOptions& options = {});

}  // namespace millrace
