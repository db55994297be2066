// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <millrace/runtime/distributed/nccl.h>
#include <millrace/tensor/multiprocessor_reserve.h>
#include <millrace/tensor/point.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/with_cuda/queue.h>

namespace millrace::detail {

class NcclWorker;

/// A communicator and its duplicates: the end of one is the end of all. Thread-safe.
class NcclFamily {
 public:
  void add(const std::shared_ptr<NcclWorker>& worker);
  /// The first reason stays. `cause`, if any, ends with `error`, all others with an AbortedError.
  void abort(const std::string& reason, NcclWorker* cause = nullptr, const std::exception_ptr& error = nullptr) noexcept;
  std::optional<std::string> reason() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<NcclWorker>> workers_;
  std::optional<std::string> reason_;
};

/// A call of NCCL, or a group of calls.
struct NcclOperation {
  std::string what;             ///< "all_gather of f32[3] by rank 0 on communicator 'nccl' of 2 ranks"
  std::vector<Point> behind;    ///< points that the operation comes behind
  std::vector<Point> unseen{};  ///< of these, what CUDA alone waits for
  std::vector<Tensor> kept;
  std::vector<std::function<ncclResult_t(ncclComm_t, cudaStream_t)>> calls;
  std::vector<std::function<void(KernelContext&)>> after;  ///< kernels that follow the calls
  std::shared_ptr<NcclWorker> duplicate;                   ///< or: the communicator is split for this one

  std::uint64_t number = 0;
  cudaEvent_t begins = nullptr;
  cudaEvent_t ends = nullptr;
  bool recorded = false;                                       ///< `ends` is in the stream
  std::optional<std::chrono::steady_clock::time_point> begun;  ///< seen to have
};

/// One communicator of NCCL, the CUDA stream that its operations run on, and the thread that makes all calls for it: NCCL's non-blocking
/// calls must be polled before anything else may be asked of the communicator or the stream. Members but `run` and what it calls: from any
/// thread.
class NcclWorker final : public std::enable_shared_from_this<NcclWorker> {
 public:
  using Clock = std::chrono::steady_clock;

  /// `title`: "by rank 0 on communicator 'x' of 2 ranks".
  NcclWorker(std::string title, int rank, NcclOptions options, std::shared_ptr<NcclFamily> family);
  ~NcclWorker();
  NcclWorker(const NcclWorker&) = delete;
  NcclWorker& operator=(const NcclWorker&) = delete;

  /// Becomes one of `world_size` ranks that know the same id, and waits for it.
  void connect(int world_size, const ncclUniqueId& id);
  /// The thread of a duplicate, whose communicator comes by `adopt`.
  void start();

  /// Ordered behind what was pushed before. The point is that of `number`.
  void push(NcclOperation operation);
  std::uint64_t next_number() const noexcept { return issued_ + 1; }
  Point point(std::uint64_t number) const { return Point(timeline_, number); }

  /// Everything under way, and all that comes, ends with `error`.
  void fail(std::exception_ptr error) noexcept;
  /// Ends the thread: orderly when nothing is under way.
  void leave() noexcept;

  const std::string& title() const noexcept { return title_; }

 private:
  void run() noexcept;
  void work();
  void adopt(ncclComm_t comm);
  /// Iterations until `done()`, seeing to what is in flight meanwhile; sleeps in between, and without a limit where nothing is polled. Throws what
  /// ends the worker, and DeadlineError `limit` after now.
  void work_until(const std::function<bool()>& done, bool polls, std::optional<std::chrono::milliseconds> limit, const std::string& what);
  void begin(NcclOperation operation);
  void split(const NcclOperation& operation);
  bool order(const Point& point, const std::string& what);
  bool look();
  void check_in_time(NcclOperation& operation);
  bool is_leaving() const;
  /// `meets`: other ranks must come for it, and `hopeless` is asked.
  void settle(ncclComm_t comm, const char* call, std::chrono::milliseconds limit, const std::string& what, bool meets = false);
  ncclResult_t state_of(ncclComm_t comm) const;
  void check(ncclResult_t code, ncclComm_t comm, const char* call, const std::string& what) const;
  cudaEvent_t event();
  std::exception_ptr unfinished() const;
  void finish() noexcept;
  void drop() noexcept;
  void end_by(std::exception_ptr error) noexcept;
  ncclConfig_t config() const;

  const std::string title_;
  const int rank_;
  const NcclOptions options_;
  const std::shared_ptr<NcclFamily> family_;
  const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
  std::uint64_t issued_ = 0;  // by the rank's calls, which come one at a time
  std::function<void()> first_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<NcclOperation> waiting_;
  std::exception_ptr failure_;
  bool leaving_ = false;
  bool connected_ = false;
  ncclComm_t adopted_ = nullptr;
  std::uint64_t wakes_ = 0;  // how often there was something new

  // Used by the thread alone.
  ncclComm_t comm_ = nullptr;
  bool finishing_ = false;
  ncclComm_t splitting_ = nullptr;                // a duplicate that is being made
  std::optional<MultiprocessorReserve> reserve_;  // while the communicator lives
  cuda::Queue queue_;
  std::deque<NcclOperation> flying_;
  std::vector<cudaEvent_t> spare_;
  std::thread thread_;

  friend class NcclFamily;
  friend struct NcclArrival;
  void wake() noexcept;
};

}  // namespace millrace::detail
