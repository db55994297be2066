// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/distributed/partition.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/tensor/device.h>

namespace millrace {

/// The part of `communicator`'s rank, compiled for one device. Any number of runs may share it, each with communicators of its own.
class PartitionPart {
 public:
  /// ArgumentError for a rank that the partition does not have. `device` null: a CPU device of its own with one thread.
  PartitionPart(const Partition& partition, int rank, std::shared_ptr<Device> device = nullptr);
  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  const Executable& executable() const noexcept { return executable_; }
  const std::vector<Partition::Transfer>& transfers() const noexcept { return transfers_; }

 private:
  int rank_;
  int ranks_;
  Executable executable_;
  std::vector<Partition::Transfer> transfers_;
};

/// The end of a rank whose work fails: it leaves, and operations that others expect of it fail; or it aborts, and they hear why.
enum class OnFailure : std::uint8_t { leave, abort };

/// Runs one part; all ranks do so. `feeds` are those of the whole program, the same on each rank; each takes what its part reads. Rank 0's result
/// has the outputs. The communicator is this run's alone, and is left when it ends. Tensors between CUDA devices need one that carries
/// them: `make_local_communicators`, `make_tcp_communicator` with ways. ArgumentError unless rank and world size are the part's.
task<RunResult> run_part(PartitionPart part, std::unique_ptr<Communicator> communicator, Feeds feeds, RunOptions options = {},
                         OnFailure on_failure = OnFailure::leave);

/// Runs all parts in this process, each on a thread of its own, on `devices[rank]` (null: a CPU device of its own with one thread), and blocks:
/// the results by rank. The error of a rank says which; that of the rank that failed first comes before those that missed it. ArgumentError
/// unless there is a device for each rank; BlockingError on a thread that runs tasks.
std::vector<RunResult> run_on_local_ranks(const Partition& partition, const std::vector<std::shared_ptr<Device>>& devices,
                                          const Feeds& feeds, RunOptions options = {});

}  // namespace millrace
