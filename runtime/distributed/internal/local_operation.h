// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/distributed/local.h>

namespace millrace::detail {

enum class Call : std::uint8_t { all_reduce, broadcast, all_gather, message };

/// The part of a request that all ranks must have alike.
struct Asked {
  Call call = Call::message;
  Reduce reduce = Reduce::sum;
  int root = 0;  ///< of a broadcast, or who sends a message
  DType dtype = DType::f32;
  DDim dims;

  /// "all_reduce (sum) of f32[4]", "message of f32[2, 3]".
  std::string to_string() const;
  friend bool operator==(const Asked&, const Asked&) = default;
};

/// The values of all ranks, one after the other in their order, on the host.
Tensor reduced(Reduce reduce, const std::vector<Tensor>& values);

/// The part of one rank in an operation.
struct LocalPart {
  Asked asked;
  Tensor in;                  ///< nothing when `gives` is false
  std::optional<Tensor> out;  ///< the result that the operation writes here
  bool gives = false;
  Point begin;                      ///< the end of what was on its stream before
  std::optional<StreamRef> device;  ///< its stream, where the host cannot reach its tensors
};

/// One collective or message: waits for its ranks, then for what their streams must do before, and then copies and adds, in the thread that
/// brought the last of it about. Nothing stands in the streams of the ranks for it, so that none is held up by another rank. It ends
/// once, for all its ranks. Ranks that have yet to call it keep it alive.
class LocalOperation final : public std::enable_shared_from_this<LocalOperation>, private Timer {
 public:
  /// `title`: "on communicator 'x' of 3 ranks". `over` is called when it has ended, `late` at the deadline, both with nothing locked.
  LocalOperation(std::string title, std::vector<int> ranks, LocalOptions options);
  std::function<void(const std::shared_ptr<LocalOperation>&)> over;
  std::function<void(const std::shared_ptr<LocalOperation>&)> late;

  const std::vector<int>& ranks() const noexcept { return ranks_; }
  Point point() const noexcept { return Point(done_, 1); }
  /// Starts the clock of the deadline, if there is one. Before any other thread knows the operation.
  void start_clock();

  /// `add` and `has` are called with the mutex of the world held. `add` is true when all ranks have come.
  bool add(int rank, LocalPart part);
  bool has(int rank) const;
  /// "all_reduce (sum) of f32[4] on communicator 'x' of 3 ranks".
  std::string describe() const;
  /// The ranks that came, and those that did not: "rank 0 came, ranks 1, 2 did not".
  std::string attendance() const;

  /// Once all have come, with nothing locked.
  void launch() noexcept;
  /// The first end counts. With nothing locked.
  void end(std::exception_ptr error) noexcept;

 private:
  struct Arrival final : Waiter {
    void complete(std::exception_ptr error) noexcept override { operation->arrived(*this, std::move(error)); }
    LocalOperation* operation = nullptr;
    std::size_t part = 0;
  };

  void fire() noexcept override;
  std::exception_ptr mismatch() const;
  void arrived(const Arrival& arrival, std::exception_ptr error) noexcept;
  void begin() noexcept;
  std::vector<Point> run();
  std::exception_ptr blame(std::size_t part, const std::exception_ptr& error) const;

  const std::string title_;
  const std::vector<int> ranks_;
  const LocalOptions options_;
  const std::int64_t begin_ns_;
  std::vector<std::optional<LocalPart>> parts_;
  std::size_t missing_;
  std::shared_ptr<Timeline> done_ = std::make_shared<Timeline>();

  std::vector<std::unique_ptr<Arrival>> arrivals_;
  std::atomic<std::size_t> awaited_{0};
  std::shared_ptr<LocalOperation> kept_;  // while something is awaited
  std::mutex failed_mutex_;
  std::exception_ptr failed_;

  std::atomic<bool> ended_{false};
  std::shared_ptr<LocalOperation> kept_by_clock_;
};

}  // namespace millrace::detail
