// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/distributed/rendezvous.h>

namespace millrace {

/// A call of NCCL that failed: names rank, operation, call, and NCCL's texts for it. That of a rank which is gone is a RankError.
class NcclError : public CommunicationError {
 public:
  NcclError(const std::string& what, int code) : CommunicationError(what), code_(code) {}
  /// The number of NCCL's `ncclResult_t`.
  int code() const noexcept { return code_; }

 private:
  int code_;
};

struct NcclOptions {
  std::string name = "nccl";
  /// The CUDA device of this rank.
  int device = 0;
  /// For becoming a communicator, and a duplicate.
  std::chrono::milliseconds meeting{60'000};
  /// The time that an operation may take, from the moment the device comes to it (so what it waits for on its own stream does not count).
  std::chrono::milliseconds deadline{600'000};
  /// The time that the destructor may wait for the other ranks to be done with this one.
  std::chrono::milliseconds leaving{5'000};
  /// Blocks of threads that NCCL may take of the device; 0: as many as it likes. Kernels that fill the device leave so many multiprocessors free
  /// (0: 32) as long as the communicator lives.
  int max_ctas = 0;
  /// Asked, from a thread of the communicator, while the ranks meet in NCCL, which does not notice who has died meanwhile: why there is no hope,
  /// which then is a RankError; or "". May be null.
  std::function<std::string()> hopeless;
};

/// The version of NCCL, "2.28.9", or "not in this build".
std::string nccl_status();

/// This rank of a world over NCCL, one process a rank. It exchanges tensors that lie on its CUDA device. The ranks must have met in `ranks`,
/// and all of them make the same communicators in the same order. Blocks until all have: not on a thread that runs tasks (BlockingError).
///
/// A communicator has a CUDA stream and a thread of its own. An operation goes to that stream behind the positions of the streams that it
/// comes after, without the host's waiting for the device; the thread sees what ends and completes the points, and sleeps when nothing is
/// under way. So no stream of the device is held up by another rank, and none fails with one. Floating-point sums of more than two ranks, and
/// min and max of floating-point values, are gathered and reduced on `stream`, in the order of the ranks, which takes memory for the values
/// of all; `stream` is then behind the operation.
///
/// Differences from `Communicator`, which come from NCCL:
/// - Ranks that ask for different things are not found out: a waiter ends with a DeadlineError, or with other values.
/// - A send is done when it was received. Calls that need one another to come about (a send and a receive each way) must stand in a group.
/// - `duplicate` is a collective: all ranks ask for the same ones in the same order. It does not wait; errors show at the first operation.
/// - After an error the communicator and its duplicates are aborted. Other ranks hear of that from NCCL (RankError) or by their deadline, and
///   not the reason.
/// - Destroyed while operations are under way, it aborts.
/// - CUDA loads a kernel before its first launch, and may wait for all that the device does to do so, also for operations that wait for other
///   ranks: a process with CUDA_MODULE_LOADING=EAGER in its environment before it first uses CUDA has all of them from the start.
///
/// Errors: UnsupportedError where the build has no NCCL; PlaceError where there is no such device; ArgumentError for the numbers;
/// MismatchError when ranks have different versions of NCCL; DeadlineError, RankError, NcclError.
std::unique_ptr<Communicator> make_nccl_communicator(Rendezvous& ranks, const NcclOptions& options = {});

}  // namespace millrace
