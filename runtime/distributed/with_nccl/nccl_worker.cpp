// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/with_nccl/nccl_worker.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/task/errors.h>
#include <millrace/tensor/start_thread.h>
#include <millrace/tensor/with_cuda/check.h>
#include <millrace/tensor/with_cuda/stream_state.h>
#include <millrace/tensor/work_failure.h>

namespace millrace::detail {
namespace {

std::string left_before(const std::string& what) { return what + ": this rank has left before it was done"; }

}  // namespace

void NcclFamily::add(const std::shared_ptr<NcclWorker>& worker) {
  const std::lock_guard lock(mutex_);
  std::erase_if(workers_, [](const auto& one) { return one.expired(); });
  workers_.push_back(worker);
}

void NcclFamily::abort(const std::string& reason, NcclWorker* cause, const std::exception_ptr& error) noexcept {
  std::vector<std::shared_ptr<NcclWorker>> all;
  {
    const std::lock_guard lock(mutex_);
    if (reason_) return;
    reason_ = reason;
    for (const auto& one : workers_)
      if (auto alive = one.lock()) all.push_back(std::move(alive));
  }
  if (cause != nullptr) cause->fail(error);
  for (const auto& worker : all)
    worker->fail(std::make_exception_ptr(AbortedError(fmt::format("operations {}: aborted: {}", worker->title(), reason))));
}

std::optional<std::string> NcclFamily::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

/// Wakes the thread when a point comes that no CUDA stream can wait for.
struct NcclArrival final : Waiter {
  explicit NcclArrival(NcclWorker& w) : worker(w) {}
  void complete(std::exception_ptr) noexcept override {
    NcclWorker& woken = worker;
    const std::lock_guard lock(woken.mutex_);  // the waiter sees it under the same
    came = true;
    ++woken.wakes_;
    woken.changed_.notify_all();
  }
  bool seen() const {
    const std::lock_guard lock(worker.mutex_);
    return came;
  }
  NcclWorker& worker;
  bool came = false;
};

NcclWorker::NcclWorker(std::string title, int rank, NcclOptions options, std::shared_ptr<NcclFamily> family)
    : title_(std::move(title)), rank_(rank), options_(std::move(options)), family_(std::move(family)) {}

NcclWorker::~NcclWorker() = default;

ncclConfig_t NcclWorker::config() const {
  ncclConfig_t made = NCCL_CONFIG_INITIALIZER;
  made.blocking = 0;
  if (options_.max_ctas > 0) made.maxCTAs = options_.max_ctas;
  return made;
}

// ---- From any thread ----

void NcclWorker::connect(int world_size, const ncclUniqueId& id) {
  first_ = [this, world_size, id] {
    const std::string what = "making a communicator " + title_;
    ncclConfig_t wanted = config();
    check(ncclCommInitRankConfig(&comm_, world_size, id, rank_, &wanted), comm_, "ncclCommInitRankConfig", what);
    settle(comm_, "ncclCommInitRankConfig", options_.meeting, what, true);
  };
  start();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return connected_ || failure_ != nullptr; });
  if (failure_) std::rethrow_exception(failure_);
}

void NcclWorker::start() {
  thread_ = start_thread("the thread of the communicator " + title_, [self = shared_from_this()] { self->run(); });
}

void NcclWorker::push(NcclOperation operation) {
  {
    const std::lock_guard lock(mutex_);
    operation.number = ++issued_;
    if (failure_) return;  // its point has the error
    waiting_.push_back(std::move(operation));
  }
  wake();
}

void NcclWorker::wake() noexcept {
  const std::lock_guard lock(mutex_);
  ++wakes_;
  changed_.notify_all();
}

void NcclWorker::fail(std::exception_ptr error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
  }
  timeline_->fail(std::move(error));
  wake();
}

void NcclWorker::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void NcclWorker::adopt(ncclComm_t comm) {
  {
    const std::lock_guard lock(mutex_);
    adopted_ = comm;
  }
  wake();
}

// ---- On the thread ----

void NcclWorker::run() noexcept {
  try {
    cuda::check(cudaSetDevice(options_.device), "cudaSetDevice", options_.device);
    queue_.device = options_.device;
    constexpr int most_ctas = 32;  // that NCCL takes where nobody says how many
    reserve_.emplace(options_.device, options_.max_ctas > 0 ? options_.max_ctas : most_ctas);
    cuda::check(cudaStreamCreateWithFlags(&queue_.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", options_.device);
    work();
  } catch (...) {
    // An error that comes while this rank leaves, such as that of a duplicate for which others never ask, ends this communicator alone.
    if (is_leaving())
      fail(std::current_exception());
    else
      end_by(std::current_exception());
  }
  finish();
}

/// The error of this communicator is the end of its family.
void NcclWorker::end_by(std::exception_ptr error) noexcept {
  family_->abort(text_of_error(error), this, error);  // known to be aborted before any waiter gets the error
  fail(std::move(error));
}

void NcclWorker::work() {
  if (first_) {
    std::exchange(first_, nullptr)();
  } else {
    const auto come = [this] {
      const std::lock_guard lock(mutex_);
      comm_ = std::exchange(adopted_, nullptr);
      return comm_ != nullptr || (leaving_ && waiting_.empty());
    };
    work_until(come, false, std::nullopt, "a duplicate " + title_);
  }
  {
    const std::lock_guard lock(mutex_);
    connected_ = true;
    changed_.notify_all();
  }
  for (;;) {
    std::optional<NcclOperation> next;
    bool over = false;
    const auto due = [&] {
      const std::lock_guard lock(mutex_);
      over = leaving_;
      if (waiting_.empty() || over) return over;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      return true;
    };
    work_until(due, false, std::nullopt, title_);
    if (!next) break;
    next->duplicate ? split(*next) : begin(std::move(*next));
  }
  look();
  if (std::exception_ptr error = unfinished()) fail(std::move(error));  // of this communicator alone
}

/// The error of the operations that this rank leaves unfinished, or null.
std::exception_ptr NcclWorker::unfinished() const {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty() && flying_.empty()) return nullptr;
  const std::string& first = flying_.empty() ? waiting_.front().what : flying_.front().what;
  return std::make_exception_ptr(RankError(left_before(first)));
}

void NcclWorker::work_until(const std::function<bool()>& done, bool polls, std::optional<std::chrono::milliseconds> limit,
                            const std::string& what) {
  constexpr auto spinning = std::chrono::microseconds(50);
  constexpr auto longest = std::chrono::microseconds(1000);
  const Clock::time_point start = Clock::now();
  Clock::time_point progress = start;
  auto pause = spinning;
  for (;;) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      seen = wakes_;
    }
    if (look()) {
      progress = Clock::now();
      pause = spinning;
    }
    if (done()) return;
    const Clock::time_point now = Clock::now();
    if (limit && now - start > *limit) throw DeadlineError(fmt::format("{}: not done within {} ms", what, limit->count()));
    const bool flies = polls || !flying_.empty();
    if (flies && now - progress < spinning) continue;
    std::unique_lock lock(mutex_);
    const auto news = [&] { return wakes_ != seen; };
    if (!flies) {
      changed_.wait(lock, news);
    } else if (!changed_.wait_for(lock, pause, news)) {
      pause = std::min(2 * pause, longest);
    }
    if (wakes_ != seen) progress = Clock::now();
  }
}

/// The asynchronous state of the communicator; the error of the query when it fails.
ncclResult_t NcclWorker::state_of(ncclComm_t comm) const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(comm, &state);
  return code == ncclSuccess ? state : code;
}

void NcclWorker::check(ncclResult_t code, ncclComm_t comm, const char* call, const std::string& what) const {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const char* last = ncclGetLastError(comm);
  const std::string text = fmt::format("{}: {}: {}{}{}", what, call, ncclGetErrorString(code), last != nullptr && *last != '\0' ? ": " : "",
                                       last != nullptr ? last : "");
  if (code == ncclRemoteError) throw RankError(text);
  throw NcclError(text, static_cast<int>(code));
}

bool NcclWorker::is_leaving() const {
  const std::lock_guard lock(mutex_);
  return leaving_;
}

/// Waits until the communicator takes the next call. Where it takes its time to connect ranks for an operation, this ends when the rank leaves.
void NcclWorker::settle(ncclComm_t comm, const char* call, std::chrono::milliseconds limit, const std::string& what, bool meets) {
  // A rank that gives up first may be heard of through NCCL before the rank that it gave up for is, by name.
  constexpr auto patience = std::chrono::seconds(1);
  ncclResult_t state = ncclInProgress;
  std::optional<Clock::time_point> failed;
  const auto settled = [&] {
    if (!meets && !finishing_ && is_leaving()) throw RankError(left_before(what));
    const bool asks = meets && options_.hopeless;
    if (asks)
      if (const std::string why = options_.hopeless(); !why.empty()) throw RankError(what + ": " + why);
    if (!failed) state = state_of(comm);
    if (state == ncclInProgress || state == ncclSuccess || !asks) return state != ncclInProgress;
    if (!failed) failed = Clock::now();
    return Clock::now() - *failed > patience;
  };
  work_until(settled, true, limit, what);
  check(state, comm, call, what);
}

cudaEvent_t NcclWorker::event() {
  cudaEvent_t made = nullptr;
  if (spare_.empty()) {
    cuda::check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags", options_.device);
  } else {
    made = spare_.back();
    spare_.pop_back();
  }
  return made;
}

/// The stream goes on behind `point`: on the device where the point is of a CUDA stream, else the thread waits. False in the former case: then
/// nobody has seen yet whether all went well before.
bool NcclWorker::order(const Point& point, const std::string& what) {
  if (point.reached()) return true;
  if (const auto* timeline = dynamic_cast<const cuda::StreamTimeline*>(point.timeline().get())) {
    point.check();
    const std::shared_ptr<cuda::StreamState> other = timeline->state();
    if (other != nullptr && other->order(point.value(), queue_.stream, options_.device)) return false;
  }
  NcclArrival arrival(*this);
  if (!point.timeline()->add(arrival, point.value())) {
    point.check();
    return true;
  }
  try {
    work_until([&] { return arrival.seen(); }, false, std::nullopt, what);
  } catch (...) {
    if (!point.timeline()->remove(arrival))
      while (!arrival.seen()) std::this_thread::yield();
    throw;
  }
  point.check();
  return true;
}

void NcclWorker::begin(NcclOperation operation) {
  for (const Point& point : operation.behind)
    if (!order(point, operation.what)) operation.unseen.push_back(point);
  operation.begins = event();
  operation.ends = event();
  NcclOperation& here = flying_.emplace_back(std::move(operation));
  cuda::check(cudaEventRecord(here.begins, queue_.stream), "cudaEventRecord", options_.device);
  check(ncclGroupStart(), comm_, "ncclGroupStart", here.what);
  ncclResult_t code = ncclSuccess;
  for (const auto& call : here.calls) {
    const ncclResult_t said = call(comm_, queue_.stream);
    if (said != ncclSuccess && said != ncclInProgress && code == ncclSuccess) code = said;
  }
  const ncclResult_t ended = ncclGroupEnd();
  check(code, comm_, "the call", here.what);
  check(ended, comm_, "ncclGroupEnd", here.what);
  settle(comm_, "ncclGroupEnd", options_.deadline, here.what);  // before that the stream may not know of them yet
  ThreadTeam alone(1);
  const std::shared_ptr<MemoryResource> no_scratch;  // the kernels of `after` need none
  KernelContext context(CudaPlace{options_.device}, alone, no_scratch, &queue_);
  for (const auto& kernel : here.after) kernel(context);
  cuda::check(cudaEventRecord(here.ends, queue_.stream), "cudaEventRecord", options_.device);
  here.recorded = true;
}

void NcclWorker::split(const NcclOperation& operation) {
  work_until([this] { return flying_.empty(); }, false, std::nullopt, operation.what);
  ncclConfig_t wanted = config();
  // NCCL writes the result when its job ends, which may be after this call has given up: into the worker, which lives until the communicator
  // is gone.
  splitting_ = nullptr;
  check(ncclCommSplit(comm_, 0, rank_, &splitting_, &wanted), comm_, "ncclCommSplit", operation.what);
  settle(comm_, "ncclCommSplit", options_.meeting, operation.what, true);
  const ncclComm_t made = std::exchange(splitting_, nullptr);
  try {
    settle(made, "ncclCommSplit", options_.meeting, operation.what, true);
  } catch (...) {
    static_cast<void>(ncclCommAbort(made));
    throw;
  }
  operation.duplicate->adopt(made);
  timeline_->advance(operation.number);
}

void NcclWorker::check_in_time(NcclOperation& operation) {
  const Clock::time_point now = Clock::now();
  if (!operation.begun) {
    if (cudaEventQuery(operation.begins) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return;
    }
    operation.begun = now;
  }
  if (now - *operation.begun > options_.deadline)
    throw DeadlineError(fmt::format("{}: not done within {} ms", operation.what, options_.deadline.count()));
}

/// Completes what has ended. True when something has.
bool NcclWorker::look() {
  if (flying_.empty()) return false;
  bool progress = false;
  check(state_of(comm_), comm_, "ncclCommGetAsyncError", flying_.front().what);
  while (!flying_.empty() && flying_.front().recorded) {
    NcclOperation& first = flying_.front();
    const cudaError_t code = cudaEventQuery(first.ends);
    if (code == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // else the thread's next call would find it
      check_in_time(first);
      break;
    }
    cuda::check(code, "cudaEventQuery", options_.device);
    for (const Point& point : first.unseen) {
      cuda::StreamTimeline::Asked asked;
      const auto* timeline = dynamic_cast<const cuda::StreamTimeline*>(point.timeline().get());
      if (const std::exception_ptr error = timeline->trouble(point.value(), asked)) std::rethrow_exception(error);
    }
    spare_.insert(spare_.end(), {first.begins, first.ends});
    const std::uint64_t number = first.number;
    flying_.pop_front();
    timeline_->advance(number);
    progress = true;
  }
  return progress;
}

/// The end of the communicator: orderly, or by force.
void NcclWorker::finish() noexcept {
  finishing_ = true;
  if (comm_ != nullptr) {
    bool orderly = false;
    try {
      {
        const std::lock_guard lock(mutex_);
        if (failure_) std::rethrow_exception(failure_);
      }
      const std::string what = "leaving " + title_;
      check(ncclCommFinalize(comm_), comm_, "ncclCommFinalize", what);
      settle(comm_, "ncclCommFinalize", options_.leaving, what);
      orderly = true;
    } catch (...) {  // no waiter is left: operations under way have their error already
    }
    static_cast<void>(orderly ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));
    comm_ = nullptr;
    if (splitting_ != nullptr) static_cast<void>(ncclCommAbort(std::exchange(splitting_, nullptr)));  // made after all
  }
  drop();
}

void NcclWorker::drop() noexcept {
  reserve_.reset();
  // Memory that NCCL's kernels read and write stays until they have ended.
  if (queue_.stream != nullptr) static_cast<void>(cudaStreamSynchronize(queue_.stream));
  for (const NcclOperation& one : flying_)
    for (const cudaEvent_t event : {one.begins, one.ends})
      if (event != nullptr) spare_.push_back(event);
  flying_.clear();
  for (const cudaEvent_t one : spare_) static_cast<void>(cudaEventDestroy(one));
  spare_.clear();
  if (queue_.stream != nullptr) static_cast<void>(cudaStreamDestroy(std::exchange(queue_.stream, nullptr)));
  std::deque<NcclOperation> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(waiting_);
    if (adopted_ != nullptr) static_cast<void>(ncclCommAbort(std::exchange(adopted_, nullptr)));
  }
  for (const NcclOperation& one : left)
    if (one.duplicate)
      one.duplicate->fail(std::make_exception_ptr(RankError(one.what + ": the communicator has ended before its duplicate was made")));
  fail(std::make_exception_ptr(RankError("operations " + title_ + ": this rank has left")));
}

}  // namespace millrace::detail
