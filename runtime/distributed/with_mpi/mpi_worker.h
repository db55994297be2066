// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <millrace/tensor/point.h>
#include <millrace/tensor/tensor.h>

namespace millrace::detail {

/// The order that an operation keeps: that of the collectives of a communicator, or of the messages to or from one peer.
struct MpiLane {
  int channel = 0;  ///< number of the communicator in this process
  int peer = -1;    ///< −1: collectives
  bool sends = false;
  friend auto operator<=>(const MpiLane&, const MpiLane&) = default;
};

/// One operation of a rank.
struct MpiOperation {
  /// Starts requests; the next stage begins when all of them are complete.
  using Stage = std::function<void(MPI_Comm, std::vector<MPI_Request>&)>;

  std::string what;  ///< "all_gather of f32[3] by rank 0 on communicator 'mpi' of 2 ranks"
  MpiLane lane;
  std::vector<Tensor> kept;
  std::vector<Stage> stages;
  std::function<void(const std::vector<MPI_Status>&)> finish;  ///< after the last stage; throws what the operation ends with
  std::chrono::milliseconds deadline{0};
  std::shared_ptr<Timeline> done = std::make_shared<Timeline>();

  bool ready = false;        ///< the work before it is done
  std::exception_ptr error;  ///< of the work before it
  std::size_t stage = 0;
  std::vector<MPI_Request> requests;
  std::chrono::steady_clock::time_point begun;
};

/// The thread that makes all MPI calls of a process. Members but those below "on the thread": from any thread.
class MpiWorker final {
 public:
  /// The worker of this process, made when there is none.
  static std::shared_ptr<MpiWorker> instance();
  ~MpiWorker();
  MpiWorker(const MpiWorker&) = delete;
  MpiWorker& operator=(const MpiWorker&) = delete;

  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return world_size_; }

  /// A channel over MPI_COMM_WORLD, or over the ranks of `parent`; all ranks open the same ones in the same order.
  int open(const std::string& title, int parent, std::chrono::milliseconds deadline);
  /// Ordered behind the operations of its lane, and behind `behind`. The result is the point at which it is done.
  Point push(std::shared_ptr<MpiOperation> operation, const std::vector<Point>& behind);
  /// The first reason stays. Reaches the other ranks.
  void abort(const std::string& reason) noexcept;
  std::optional<std::string> aborted() const;

 private:
  using Clock = std::chrono::steady_clock;
  using OperationPtr = std::shared_ptr<MpiOperation>;

  MpiWorker() = default;
  void start();

  // Called on the worker's thread.
  void run() noexcept;
  void initialise();
  void loop();
  bool begin_ready();
  bool advance_active();
  bool advance(MpiOperation& operation);
  bool take_control();
  void tell_abort(const std::string& reason) noexcept;
  void end_all(const std::exception_ptr& error) noexcept;
  void finalise() noexcept;
  void rest(bool progress, std::uint64_t seen);

  int rank_ = 0;
  int world_size_ = 1;

  /// Outlives the worker: the work before an operation may end after it.
  struct Inbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t wakes = 0;
    void wake() noexcept;
  };
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();

  // Under the mutex of the inbox.
  bool initialised_ = false;
  bool leaving_ = false;
  std::exception_ptr failure_;  ///< of MPI_Init
  int channels_ = 0;
  std::map<MpiLane, std::deque<OperationPtr>> lanes_;  ///< operations that have not begun
  std::optional<std::string> reason_;
  bool abort_told_ = false;

  // Used by the thread alone.
  std::map<int, MPI_Comm> comms_;
  std::set<int> open_;  ///< channels whose communicator is made
  MPI_Comm control_ = MPI_COMM_NULL;
  std::map<MpiLane, int> active_in_;  ///< collectives under way
  std::vector<OperationPtr> active_;
  std::chrono::microseconds nap_{0};
  Clock::time_point last_progress_;
  std::thread thread_;
};

/// CommunicationError with MPI's text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call, const std::string& what);

}  // namespace millrace::detail
