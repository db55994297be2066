// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/with_mpi/mpi_worker.h>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/distributed/errors.h>
#include <millrace/runtime/distributed/internal/when_all.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/tensor/start_thread.h>
#include <millrace/tensor/work_failure.h>

namespace millrace::detail {
namespace {

constexpr int abort_tag = 1;
constexpr std::size_t most_reason = 4096;
constexpr std::chrono::microseconds spin{50}, shortest_nap{50}, longest_nap{1000}, idle_nap{20'000};

}  // namespace

void check_mpi(int code, const char* call, const std::string& what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  const std::string said = fmt::format("{}: {}: {}", what, call, std::string(text.data(), static_cast<std::size_t>(length)));
  if (int kind = MPI_SUCCESS; MPI_Error_class(code, &kind) == MPI_SUCCESS && kind == MPI_ERR_TRUNCATE) throw MismatchError(said);
  throw CommunicationError(said);
}

// ---- From any thread ----

std::shared_ptr<MpiWorker> MpiWorker::instance() {
  // MPI is a property of the process: it is initialised once, and finalised once.
  static std::mutex mutex;
  static std::weak_ptr<MpiWorker> known;
  const std::lock_guard lock(mutex);
  if (std::shared_ptr<MpiWorker> alive = known.lock()) return alive;
  std::shared_ptr<MpiWorker> made(new MpiWorker);
  made->start();
  known = made;
  return made;
}

void MpiWorker::start() {
  thread_ = start_thread("the thread of MPI", [this] { run(); });
  std::unique_lock lock(inbox_->mutex);
  inbox_->changed.wait(lock, [this] { return initialised_ || failure_ != nullptr; });
  if (failure_ == nullptr) return;
  const std::exception_ptr failure = failure_;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(failure);
}

MpiWorker::~MpiWorker() {
  {
    const std::lock_guard lock(inbox_->mutex);
    leaving_ = true;
  }
  inbox_->wake();
  if (thread_.joinable()) thread_.join();
}

void MpiWorker::Inbox::wake() noexcept {
  const std::lock_guard lock(mutex);
  ++wakes;
  changed.notify_all();
}

int MpiWorker::open(const std::string& title, int parent, std::chrono::milliseconds deadline) {
  auto operation = std::make_shared<MpiOperation>();
  operation->what = "making " + title;
  operation->lane = MpiLane{parent, -1, false};
  operation->deadline = deadline;
  int channel = 0;
  {
    const std::lock_guard lock(inbox_->mutex);
    channel = ++channels_;
  }
  operation->stages.push_back([this, channel, what = operation->what](MPI_Comm comm, std::vector<MPI_Request>& requests) {
    requests.emplace_back();
    check_mpi(MPI_Comm_idup(comm, &comms_[channel], &requests.back()), "MPI_Comm_idup", what);
  });
  operation->finish = [this, channel, what = operation->what](const std::vector<MPI_Status>&) {
    check_mpi(MPI_Comm_set_errhandler(comms_.at(channel), MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", what);
    open_.insert(channel);
  };
  push(std::move(operation), {});
  return channel;
}

Point MpiWorker::push(std::shared_ptr<MpiOperation> operation, const std::vector<Point>& behind) {
  const Point done(operation->done, 1);
  {
    const std::lock_guard lock(inbox_->mutex);
    if (reason_) throw AbortedError(fmt::format("{}: aborted: {}", operation->what, *reason_));
    lanes_[operation->lane].push_back(operation);
  }
  when_all(behind, [inbox = inbox_, operation](std::exception_ptr error) {
    const std::lock_guard lock(inbox->mutex);
    operation->ready = true;
    operation->error = std::move(error);
    ++inbox->wakes;
    inbox->changed.notify_all();
  });
  return done;
}

void MpiWorker::abort(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(inbox_->mutex);
    if (reason_) return;
    reason_ = reason;
  }
  inbox_->wake();
}

std::optional<std::string> MpiWorker::aborted() const {
  const std::lock_guard lock(inbox_->mutex);
  return reason_;
}

// ---- On the thread ----

void MpiWorker::run() noexcept {
  try {
    initialise();
  } catch (...) {
    const std::lock_guard lock(inbox_->mutex);
    failure_ = std::current_exception();
    inbox_->changed.notify_all();
    return;
  }
  {
    const std::lock_guard lock(inbox_->mutex);
    initialised_ = true;
    inbox_->changed.notify_all();
  }
  loop();
  finalise();
}

void MpiWorker::initialise() {
  const std::string what = "communicator over MPI";
  int initialised = 0, finalised = 0, provided = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) throw CommunicationError(what + ": MPI was finalised in this process, and cannot be initialised again");
  if (initialised != 0)
    throw CommunicationError(what + ": expected to initialise MPI itself, found it initialised by another part of the program");
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", what);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank", what);
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world_size_), "MPI_Comm_size", what);
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup", what);
  MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  comms_[0] = MPI_COMM_WORLD;
  open_.insert(0);
}

void MpiWorker::loop() {
  for (;;) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(inbox_->mutex);
      seen = inbox_->wakes;
    }
    bool progress = begin_ready();
    progress |= advance_active();
    progress |= take_control();
    if (const auto reason = aborted()) {
      tell_abort(*reason);
      end_all(std::make_exception_ptr(AbortedError(fmt::format("operations of rank {}: aborted: {}", rank_, *reason))));
    }
    {
      const std::lock_guard lock(inbox_->mutex);
      const bool waiting = std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return !lane.second.empty(); });
      if (leaving_ && ((active_.empty() && !waiting) || reason_)) return;
    }
    rest(progress, seen);
  }
}

/// Starts what its lane and the work before it allow.
bool MpiWorker::begin_ready() {
  bool progress = false;
  std::vector<OperationPtr> starting;
  {
    const std::lock_guard lock(inbox_->mutex);
    for (auto& [lane, waiting] : lanes_) {
      while (!waiting.empty() && waiting.front()->ready && open_.contains(lane.channel)) {
        if (lane.peer < 0 && active_in_[lane] > 0) break;
        if (lane.peer < 0) ++active_in_[lane];
        starting.push_back(std::move(waiting.front()));
        waiting.pop_front();
      }
    }
  }
  for (const OperationPtr& operation : starting) {
    progress = true;
    operation->begun = Clock::now();
    active_.push_back(operation);
    if (operation->error == nullptr) continue;
    abort(fmt::format("{}: the work of rank {} failed: {}", operation->what, rank_, text_of_error(operation->error)));
  }
  return progress;
}

bool MpiWorker::advance_active() {
  bool progress = false;
  for (std::size_t i = 0; i < active_.size();) {
    const OperationPtr operation = active_[i];
    bool over = false;
    try {
      over = advance(*operation);
      if (over) operation->done->advance(1);
    } catch (const MismatchError&) {  // on all ranks alike: the communicator goes on
      over = true;
      operation->done->fail(std::current_exception());
    } catch (...) {
      over = true;
      const std::exception_ptr error = std::current_exception();
      operation->done->fail(error);
      abort(text_of_error(error));
    }
    if (!over) {
      ++i;
      continue;
    }
    progress = true;
    if (operation->lane.peer < 0) --active_in_[operation->lane];
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return progress;
}

/// True when the last stage is complete.
bool MpiWorker::advance(MpiOperation& operation) {
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
  std::vector<MPI_Status> statuses;
  for (;;) {
    if (!operation.requests.empty()) {
      int complete = 0;
      statuses.assign(operation.requests.size(), MPI_Status{});
      const int code = MPI_Testall(static_cast<int>(operation.requests.size()), operation.requests.data(), &complete, statuses.data());
      if (code == MPI_ERR_IN_STATUS)
        for (const MPI_Status& status : statuses) check_mpi(status.MPI_ERROR, "MPI_Testall", operation.what);
      check_mpi(code, "MPI_Testall", operation.what);
      if (complete == 0) {
        if (Clock::now() - operation.begun < operation.deadline) return false;
        throw DeadlineError(fmt::format("{}: not all ranks came within {} ms", operation.what, operation.deadline.count()));
      }
      operation.requests.clear();
    }
    if (operation.stage == operation.stages.size()) break;
    const std::size_t stage = operation.stage++;
    operation.stages[stage](comms_.at(operation.lane.channel), operation.requests);
  }
  if (operation.finish) operation.finish(statuses);
  return true;
}

/// Hears of an abort by another rank.
bool MpiWorker::take_control() {
  if (world_size_ == 1 || aborted()) return false;
  int come = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, abort_tag, control_, &come, &status) != MPI_SUCCESS || come == 0) return false;
  int bytes = 0;
  MPI_Get_count(&status, MPI_CHAR, &bytes);
  std::string reason(static_cast<std::size_t>(std::max(bytes, 0)), '\0');
  MPI_Recv(reason.data(), bytes, MPI_CHAR, status.MPI_SOURCE, abort_tag, control_, MPI_STATUS_IGNORE);
  {
    const std::lock_guard lock(inbox_->mutex);
    abort_told_ = true;  // by the rank that began it
  }
  abort(reason);
  return true;
}

void MpiWorker::tell_abort(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(inbox_->mutex);
    if (std::exchange(abort_told_, true)) return;
  }
  const std::string told = reason.substr(0, most_reason);
  std::vector<MPI_Request> requests;
  for (int other = 0; other < world_size_; ++other) {
    if (other == rank_) continue;
    requests.emplace_back();
    MPI_Isend(told.data(), static_cast<int>(told.size()), MPI_CHAR, other, abort_tag, control_, &requests.back());
  }
  // A rank that is gone takes no message.
  for (const Clock::time_point end = Clock::now() + std::chrono::milliseconds(500); Clock::now() < end;) {
    int complete = 0;
    if (requests.empty() ||
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &complete, MPI_STATUSES_IGNORE) != MPI_SUCCESS || complete != 0)
      return;
    std::this_thread::sleep_for(shortest_nap);
  }
}

void MpiWorker::end_all(const std::exception_ptr& error) noexcept {
  std::vector<OperationPtr> ended = std::exchange(active_, {});
  {
    const std::lock_guard lock(inbox_->mutex);
    for (auto& [lane, waiting] : lanes_) {
      ended.insert(ended.end(), waiting.begin(), waiting.end());
      waiting.clear();
    }
  }
  active_in_.clear();
  // MPI may still write into the tensors of operations that it was given: they stay as long as the process.
  static auto* const left = new std::vector<OperationPtr>;
  for (const OperationPtr& operation : ended) {
    if (!operation->requests.empty()) left->push_back(operation);
    operation->done->fail(error);
  }
}

void MpiWorker::rest(bool progress, std::uint64_t seen) {
  const Clock::time_point now = Clock::now();
  if (progress) {
    nap_ = shortest_nap;
    last_progress_ = now;
    return;
  }
  if (!active_.empty() && now - last_progress_ < spin) return;
  std::unique_lock lock(inbox_->mutex);
  const auto changed = [&] { return inbox_->wakes != seen; };
  if (world_size_ == 1 && active_.empty())  // no other rank says anything
    inbox_->changed.wait(lock, changed);
  else
    inbox_->changed.wait_for(lock, nap_, changed);
  nap_ = changed() ? shortest_nap : std::min(nap_ * 2, active_.empty() ? idle_nap : longest_nap);
}

/// An aborted world is left as it is: MPI_Finalize would wait for ranks that may be gone.
void MpiWorker::finalise() noexcept {
  if (aborted()) return;
  for (auto& [channel, comm] : comms_)
    if (channel != 0 && comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
  MPI_Comm_free(&control_);
  MPI_Finalize();
}

}  // namespace millrace::detail
