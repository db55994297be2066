// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <millrace/runtime/distributed/errors.h>
#include <millrace/runtime/distributed/rank_environment.h>

namespace millrace {

struct RendezvousOptions {
  /// For the meeting, and for each exchange.
  std::chrono::milliseconds deadline{60'000};
  /// The time in which a connection says who it is. It is then closed, and its place is free again.
  std::chrono::milliseconds hello{5'000};
  /// The largest blob that is taken, in bytes.
  std::size_t most_bytes = 64 * 1024;
};

/// Where the ranks of several processes meet before they work together, over TCP: each gives small blobs (the id of an NCCL communicator) and
/// gets those of all. Rank 0 listens at the address of the environment, and there alone; it is meant for a network whose hosts trust one
/// another, since who says that it is a rank is believed. A peer that says something else is shut out, and the wait for missing
/// ranks goes on.
///
/// Calls block: not on a thread that runs tasks (BlockingError). One thread at a time. Errors: DeadlineError names the ranks that are missing;
/// RankError a rank that has left, or that nobody listens; MismatchError what two ranks do not agree on. All ranks that are there hear
/// the same error, and after one the rendezvous is over.
class Rendezvous {
 public:
  /// Waits until all have come.
  explicit Rendezvous(const RankEnvironment& where, RendezvousOptions options = {});
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const noexcept;
  int world_size() const noexcept;
  /// The address of this host, as the others reach it: that of its end of the meeting.
  std::string address() const;
  /// The blobs of all, by rank. All ranks make the same exchanges in the same order; `name` (1 to 256 bytes) is what they must agree on.
  /// ArgumentError for a blob that is too large.
  std::vector<std::string> exchange(const std::string& name, const std::string& blob);

 private:
  class Hub;
  class Member;
  std::unique_ptr<Hub> hub_;        // rank 0
  std::unique_ptr<Member> member_;  // all others
  int rank_;
  int world_size_;
  RendezvousOptions options_;
};

}  // namespace millrace
