// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/distributed/internal/local_operation.h>

namespace millrace::detail {

/// Where the ranks of one process meet: who has come to which operation. A *channel* is the order of one communicator and its likes on the
/// other ranks; duplicates are further channels. One mutex, never held while an operation is launched or ended. Thread-safe.
class LocalWorld final : public std::enable_shared_from_this<LocalWorld> {
 public:
  using OperationPtr = std::shared_ptr<LocalOperation>;

  LocalWorld(int size, LocalOptions options);
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int size() const noexcept { return size_; }
  const std::string& name() const noexcept { return options_.name; }

  /// ArgumentError when the rank is there already.
  void enter(const std::string& channel, int rank);
  void leave(const std::string& channel, int rank) noexcept;

  Point collective(const std::string& channel, int rank, LocalPart part);
  Point send(const std::string& channel, int from, int to, LocalPart part);
  Point recv(const std::string& channel, int from, int to, LocalPart part);

  void abort(const std::string& reason) noexcept;
  bool aborted() const noexcept;
  void check_not_aborted() const;

 private:
  enum class Here : std::uint8_t { not_yet, here, left };
  using Route = std::pair<int, int>;  // from, to
  struct Channel {
    std::vector<Here> ranks;
    std::vector<std::uint64_t> next;  // number of a rank's next collective
    std::map<std::uint64_t, OperationPtr> collectives;
    std::map<Route, std::deque<OperationPtr>> sends;
    std::map<Route, std::deque<OperationPtr>> recvs;
  };
  using Ended = std::vector<std::pair<OperationPtr, std::exception_ptr>>;

  Channel& channel(const std::string& name);
  bool gone(const Channel& channel, int rank) const;
  std::string title(const std::string& channel) const;
  OperationPtr make(const std::string& channel, std::vector<int> ranks);
  Point message(const std::string& channel, Route route, bool sends, LocalPart part);
  Point started(std::unique_lock<std::mutex> lock, const OperationPtr& operation, bool complete, bool hopeless);
  std::exception_ptr left(const LocalOperation& operation) const;
  void drop_hopeless(Channel& channel, Ended& ended);
  void take_all(Ended& ended, const std::exception_ptr& error);
  void expire(const OperationPtr& operation) noexcept;
  void check_locked() const;
  static void end(const Ended& ended) noexcept;

  const int size_;
  const LocalOptions options_;
  mutable std::mutex mutex_;
  std::map<std::string, Channel> channels_;  // the first, "", is that of the communicators that were made
  std::set<OperationPtr> running_;
  std::optional<std::string> aborted_;
};

}  // namespace millrace::detail
