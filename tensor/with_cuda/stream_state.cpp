// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/stream_state.h>

#include <algorithm>
#include <string>
#include <utility>

#include <cuda.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/tensor/with_cuda/waiters.h>
#include <millrace/tensor/with_cuda/watermark.h>

namespace millrace::cuda {
namespace {

using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

/// The driver's entry, taken at run time: programs that link libcuda do not start without a driver.
WriteValue write_value() {
  static const WriteValue found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t code = cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &entry, 12000, cudaEnableDefault, &result);
    return code == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<WriteValue>(entry) : nullptr;
  }();
  return found;
}

/// CUDA counts a stream that is not ready as an error, which the thread's next launch would find.
cudaError_t queried(cudaStream_t stream) {
  const cudaError_t code = cudaStreamQuery(stream);
  if (code == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return code;
}

cudaError_t queried(cudaEvent_t event) {
  const cudaError_t code = cudaEventQuery(event);
  if (code == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return code;
}

std::exception_ptr fault_error(std::uint64_t word, const Queue& queue) {
  const auto name = queue.context == nullptr ? nullptr : queue.context->fault_name.load(std::memory_order_relaxed);
  const std::string start =
      std::string(name == nullptr ? "a kernel" : name(FaultWord::source(word))) + " on cuda:" + std::to_string(queue.device) + ": ";
  if (FaultWord::kind(word) == Fault::zero_divisor) return std::make_exception_ptr(ArgumentError(start + "an integer is divided by zero"));
  return std::make_exception_ptr(IndexError(start + "expected an index within the axis, found " + std::to_string(FaultWord::value(word))));
}

}  // namespace

std::shared_ptr<StreamState> StreamTimeline::state() const {
  const std::lock_guard lock(mutex_);
  return state_.lock();
}

void StreamTimeline::attach(std::weak_ptr<StreamState> state) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(state);
}

void StreamTimeline::asked(std::uint64_t value) {
  const auto stream = state();
  if (stream == nullptr) return;
  try {
    stream->ask(value);
  } catch (...) {
    stream->doom(std::current_exception());  // the waiters get the error
  }
}

void StreamTimeline::expected(std::uint64_t value) {
  if (const auto stream = state()) stream->expect(value);
}

std::exception_ptr StreamTimeline::trouble(std::uint64_t value, Asked& asked) const {
  if (reached() >= value) return nullptr;
  const std::shared_ptr<StreamState> stream = error() == nullptr ? state() : nullptr;
  return stream == nullptr ? error() : stream->trouble(value, asked);
}

StreamState::StreamState(int device, Waiters& waiters, std::uint64_t* words_on_host, std::uint64_t* words_on_device)
    : waiters_(waiters), progress_(words_on_host), fault_(words_on_host + 1), progress_on_device_(words_on_device) {
  queue_.device = device;
  queue_.fault = words_on_device + 1;
  queue_.launched = &launched_;
  const OnDevice here(device);
  check(cudaDeviceGetAttribute(&queue_.multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute", device);
  check(cudaStreamCreateWithFlags(&queue_.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", device);
}

StreamState::~StreamState() {
  for (const auto* list : {&marks_, &points_})
    for (const Mark& one : *list) static_cast<void>(cudaEventDestroy(one.event));
  for (const cudaEvent_t one : spare_) static_cast<void>(cudaEventDestroy(one));
  static_cast<void>(cudaStreamDestroy(queue_.stream));
}

void StreamState::handed(std::uint64_t value) {
  handed_.store(value, std::memory_order_release);
  handing_.store(false, std::memory_order_release);
  cudaError_t code = cudaSuccess;
  {
    const std::lock_guard lock(mutex_);
    const auto due = std::erase_if(wanted_, [value](std::uint64_t one) { return one <= value; });
    if (due == 0 || closed_) return;
    code = mark(value);
  }
  code == cudaSuccess ? waiters_.notify() : doom(lost(code, "cudaEventRecord"));
}

void StreamState::ask(std::uint64_t value) {
  cudaError_t code = cudaSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (handed() < value) return wanted_.push_back(value);  // `handed` marks it later
    code = mark(value);
  }
  code == cudaSuccess ? waiters_.notify() : doom(lost(code, "cudaEventRecord"));
}

void StreamState::expect(std::uint64_t value) {
  const std::lock_guard lock(mutex_);
  if (closed_ || handed() < value || recorded(value) != nullptr) return;
  prune();
  Mark made;
  // An error shows at the next wait.
  if (record(made, false) == cudaSuccess) points_.push_back(made);
}

/// Records an event where the stream is now. With `word`, the device also writes a word that the host reads without the driver. The word costs the
/// stream some 20 µs on an H100, so only marks that the host waits for have one.
cudaError_t StreamState::record(Mark& made, bool word) {
  const OnDevice here(queue_.device);
  made.value = handed();
  cudaError_t code = cudaSuccess;
  if (spare_.empty()) {
    code = cudaEventCreateWithFlags(&made.event, cudaEventDisableTiming);
  } else {
    made.event = spare_.back();
    spare_.pop_back();
  }
  if (word && code == cudaSuccess && has_word_ && write_value() != nullptr) {  // the driver's codes are the runtime's
    code = static_cast<cudaError_t>(write_value()(queue_.stream, reinterpret_cast<CUdeviceptr>(progress_on_device_), made.value, 0));
    has_word_ = code != cudaErrorNotSupported;
    made.word = has_word_;
    if (!has_word_) code = cudaSuccess;
  }
  if (code == cudaSuccess) code = cudaEventRecord(made.event, queue_.stream);
  if (code != cudaSuccess && made.event != nullptr) spare_.push_back(made.event);
  return code;
}

/// The event that was recorded first at or behind `value`, or null.
const StreamState::Mark* StreamState::recorded(std::uint64_t value) const {
  const Mark* found = nullptr;
  for (const auto* list : {&marks_, &points_}) {
    const auto at = std::lower_bound(list->begin(), list->end(), value, [](const Mark& one, std::uint64_t v) { return one.value < v; });
    if (at != list->end() && (found == nullptr || at->value < found->value)) found = &*at;
  }
  return found;
}

/// Has the waiter look for the first thing recorded at or behind `value`.
cudaError_t StreamState::mark(std::uint64_t value) {
  const Mark* found = recorded(value);
  Mark made;
  if (found == nullptr) {
    const cudaError_t code = record(made, true);
    if (code != cudaSuccess) return code;
  } else {
    made = *found;
    const auto at = std::find_if(points_.begin(), points_.end(), [&](const Mark& one) { return one.value == made.value; });
    if (at == points_.end()) return cudaSuccess;  // it does already
    points_.erase(at);
  }
  marks_.insert(std::upper_bound(marks_.begin(), marks_.end(), made, [](const Mark& a, const Mark& b) { return a.value < b.value; }), made);
  return cudaSuccess;
}

/// Drops marks without a waiter: reached ones, and the oldest of many.
void StreamState::prune() {
  constexpr std::size_t most_points = 256;
  const std::uint64_t known = seen();
  while (!points_.empty() && (points_.front().value <= known || points_.size() >= most_points)) {
    spare_.push_back(points_.front().event);
    points_.pop_front();
  }
}

bool StreamState::in_flight() const {
  const std::lock_guard lock(mutex_);
  return !marks_.empty() || doom_ != nullptr || !watched_.empty();
}

bool StreamState::order(std::uint64_t value, cudaStream_t other, int other_device) {
  cudaError_t code = cudaSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return true;
    if (handed() < value) return false;
    if (seen() >= value) return true;  // a mark recorded now would stand behind later work
    const Mark* found = recorded(value);
    if (found == nullptr) {
      prune();
      Mark made;
      code = record(made, false);
      if (code == cudaSuccess) found = &points_.emplace_back(made);
    }
    if (code == cudaSuccess) {
      const OnDevice there(other_device);
      code = cudaStreamWaitEvent(other, found->event, 0);
    }
  }
  check(code, "cudaStreamWaitEvent", other_device);
  return true;
}

void StreamState::doom(std::exception_ptr error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!doom_) doom_ = std::move(error);
  }
  waiters_.notify();
}

std::uint64_t StreamState::seen() const noexcept {
  const std::uint64_t told = std::max(timeline_->reached(), idle_at_.load(std::memory_order_acquire));
  return std::max(told, std::atomic_ref(*progress_).load(std::memory_order_acquire));
}

bool StreamState::idle() const {
  const std::uint64_t value = handed();
  if (queried(queue_.stream) != cudaSuccess) return false;
  for (std::uint64_t before = idle_at_.load(); before < value && !idle_at_.compare_exchange_weak(before, value);) {
  }
  return true;
}

bool StreamState::write(std::uint64_t* word, std::uint64_t value) {
  {
    const std::lock_guard lock(mutex_);
    if (!has_word_ || write_value() == nullptr) return false;
  }
  const OnDevice here(queue_.device);
  const auto code = static_cast<cudaError_t>(write_value()(queue_.stream, reinterpret_cast<CUdeviceptr>(word), value, 0));
  if (code == cudaErrorNotSupported) return false;
  check(code, "cuStreamWriteValue64", queue_.device);
  return true;
}

void StreamState::keep(std::shared_ptr<Allocation> storage) {
  const std::uint64_t value = handed() + 1;
  {
    const std::lock_guard lock(mutex_);
    kept_.push_back({value, std::move(storage)});
  }
  ask(value);
}

/// The error of the stream: the work in progress is named, as far as it is known.
std::exception_ptr StreamState::lost(cudaError_t code, const char* call) const {
  return error_of(code, call, queue_.device, launched_.text());
}

std::shared_ptr<StreamTimeline> StreamState::current() const {
  const std::lock_guard lock(mutex_);
  return timeline_;
}

void StreamState::fail(std::exception_ptr error) noexcept { fail(std::move(error), current()); }

void StreamState::fail(std::exception_ptr error, const std::shared_ptr<StreamTimeline>& timeline) noexcept {
  timeline->fail(error);
  std::vector<std::weak_ptr<CudaWatermark>> lost;
  std::vector<std::shared_ptr<CudaWatermark>> watched;
  {
    const std::lock_guard lock(mutex_);
    lost.swap(watermarks_);
    watched.swap(watched_);
  }
  for (const auto& one : lost)
    if (const auto watermark = one.lock()) watermark->abandon(error);
}

// ---- Watermarks ----

void StreamState::add(const std::shared_ptr<CudaWatermark>& watermark) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(watermarks_, [](const auto& one) { return one.expired(); });
    watermarks_.push_back(watermark);
  }
  if (const std::exception_ptr error = current()->error()) watermark->fail(error);
}

void StreamState::watch(std::shared_ptr<CudaWatermark> watermark) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (std::find(watched_.begin(), watched_.end(), watermark) == watched_.end()) watched_.push_back(std::move(watermark));
  }
  waiters_.notify();
}

bool StreamState::look_at_watermarks() {
  std::vector<std::shared_ptr<CudaWatermark>> watched;
  {
    const std::lock_guard lock(mutex_);
    if (watched_.empty()) return false;
    watched = watched_;
  }
  bool progress = false;
  for (const auto& one : watched) {
    const std::uint64_t seen = one->seen();
    if (seen <= one->reached()) continue;
    if (faulted() || in_trouble(handed(), false)) return true;
    one->advance(seen);
    progress = true;
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [](const auto& one) { return one->due() <= one->reached() || one->error() != nullptr; });
  return progress;
}

/// Looks whether the stream has failed, or its kernels have ended, without which a watermark would be waited for in vain. True when there was progress.
bool StreamState::check_watched() {
  std::vector<std::pair<std::shared_ptr<CudaWatermark>, std::uint64_t>> due;  // before the stream is asked: later work is not due
  {
    const std::lock_guard lock(mutex_);
    for (const auto& one : watched_) due.emplace_back(one, one->due());
  }
  if (due.empty()) return false;
  const cudaError_t code = queried(queue_.stream);
  if (code == cudaErrorNotReady) return false;
  if (faulted() || in_trouble(handed(), false)) return true;
  if (code != cudaSuccess) {
    fail(lost(code, "cudaStreamQuery"));
    return true;
  }
  for (const auto& [one, steps] : due) {
    one->advance(one->seen());
    if (one->reached() < steps) one->end();
  }
  look_at_watermarks();
  return true;
}

/// Fails the stream when a kernel left a word that says so.
bool StreamState::faulted() noexcept {
  if (std::atomic_ref(*fault_).load(std::memory_order_acquire) == 0) return false;
  std::uint64_t word = 0;
  std::shared_ptr<StreamTimeline> timeline;
  {
    const std::lock_guard lock(mutex_);  // `renew` takes both at once
    word = std::atomic_ref(*fault_).load(std::memory_order_acquire);
    timeline = timeline_;
  }
  if (word == 0) return false;
  fail(fault_error(word, queue_), timeline);
  return true;
}

// ---- Streams that this one came behind ----

void StreamState::follow(std::shared_ptr<StreamTimeline> other, std::uint64_t value, std::uint64_t at) {
  const std::lock_guard lock(mutex_);
  for (Followed& one : followed_) {
    if (one.timeline != other) continue;
    one.value = std::max(one.value, value);
    one.last = at;
    return;
  }
  followed_.push_back({std::move(other), value, at, at});
}

std::exception_ptr StreamState::trouble(std::uint64_t value, StreamTimeline::Asked& asked) {
  for (const auto& [stream, far] : asked)
    if (stream == this && far >= value) return nullptr;
  asked.emplace_back(this, value);
  std::vector<Followed> behind;
  std::shared_ptr<StreamTimeline> timeline;
  {
    const std::lock_guard lock(mutex_);
    timeline = timeline_;
    for (const Followed& one : followed_)
      if (one.first <= value) behind.push_back(one);
  }
  if (faulted()) return timeline->error();
  for (const Followed& one : behind)
    if (const std::exception_ptr error = one.timeline->trouble(one.value, asked)) {
      fail(error, timeline);
      return error;
    }
  return nullptr;
}

/// Fails the stream when one has failed that it came behind, as far as `value`. When the device got there, that need not be asked again.
bool StreamState::in_trouble(std::uint64_t value, bool reached) {
  {
    const std::lock_guard lock(mutex_);
    if (followed_.empty()) return false;
  }
  StreamTimeline::Asked asked;
  if (trouble(value, asked)) return true;
  if (!reached) return false;
  const std::lock_guard lock(mutex_);
  std::erase_if(followed_, [value](const Followed& one) { return one.last <= value; });
  return false;
}

// ---- After a failure ----

std::exception_ptr StreamState::gone() const {
  const auto took_it = [](const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const CudaError& known) {
      return known.is_sticky();
    } catch (...) {
    }
    return false;
  };
  if (const std::exception_ptr error = current()->error(); took_it(error)) return error;
  const cudaError_t code = queried(queue_.stream);
  if (code == cudaSuccess || code == cudaErrorNotReady) return nullptr;
  const std::exception_ptr error = lost(code, "cudaStreamQuery");
  return took_it(error) ? error : nullptr;
}

bool StreamState::settle() {
  const cudaError_t code = cudaStreamSynchronize(queue_.stream);
  if (code != cudaSuccess) fail(lost(code, "cudaStreamSynchronize"));
  if (code == cudaSuccess) reach(handed());
  return code == cudaSuccess;
}

void StreamState::renew() {
  if (current()->error() == nullptr) return;
  auto fresh = std::make_shared<StreamTimeline>();
  fresh->advance(handed());
  fresh->attach(weak_from_this());
  const std::lock_guard lock(mutex_);
  for (const Mark& one : marks_) spare_.push_back(one.event);
  marks_.clear();
  wanted_.clear();
  followed_.clear();
  doom_ = nullptr;
  std::atomic_ref(*fault_).store(0, std::memory_order_release);
  timeline_ = std::move(fresh);
}

bool StreamState::look() {
  const bool progress = look_at_watermarks();
  std::uint64_t seen = std::atomic_ref(*progress_).load(std::memory_order_acquire);
  {
    const std::lock_guard lock(mutex_);
    if (!marks_.empty() && !marks_.front().word && marks_.front().value > seen && queried(marks_.front().event) == cudaSuccess)
      seen = marks_.front().value;
    if (!doom_ && (marks_.empty() || marks_.front().value > seen)) return progress;
  }
  reach(seen);
  return true;
}

bool StreamState::ask_device() {
  Mark oldest;
  {
    const std::lock_guard lock(mutex_);
    if (!marks_.empty()) oldest = marks_.front();
  }
  // The event may be recorded anew meanwhile, for a later mark: then this one is reached all the more.
  const cudaError_t code = oldest.event == nullptr ? cudaErrorNotReady : queried(oldest.event);
  if (code == cudaSuccess) {
    reach(oldest.value);
  } else if (code != cudaErrorNotReady) {
    {
      const std::lock_guard lock(mutex_);
      for (const Mark& one : marks_) spare_.push_back(one.event);
      marks_.clear();
    }
    fail(lost(code, "cudaEventQuery"));
  }
  const bool ended = check_watched();
  return ended || code != cudaErrorNotReady;
}

/// The device got as far as `value`.
void StreamState::reach(std::uint64_t value) noexcept {
  std::deque<Kept> released;
  std::exception_ptr doom;
  std::shared_ptr<StreamTimeline> timeline;
  {
    const std::lock_guard lock(mutex_);
    timeline = timeline_;
    doom = std::exchange(doom_, nullptr);
    while (!marks_.empty() && marks_.front().value <= value) {
      spare_.push_back(marks_.front().event);
      marks_.pop_front();
    }
    while (!kept_.empty() && kept_.front().value <= value) {
      released.push_back(std::move(kept_.front()));
      kept_.pop_front();
    }
  }
  if (doom) return fail(doom, timeline);  // before what was enqueued behind the failure seems done
  if (faulted() || in_trouble(value, true)) return;
  timeline->advance(value);
  // A word that the device wrote says that it got there, and after a failure it writes none; a status that is neither tells of one since.
  const cudaError_t code = queried(queue_.stream);
  if (code != cudaSuccess && code != cudaErrorNotReady) fail(lost(code, "cudaStreamQuery"), timeline);
}

void StreamState::close() noexcept {
  const cudaError_t code = cudaStreamSynchronize(queue_.stream);
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  if (code != cudaSuccess) fail(lost(code, "cudaStreamSynchronize"));
  reach(handed());
  timeline_->attach({});  // not before: others ask whether it went well
  std::vector<std::weak_ptr<CudaWatermark>> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(watermarks_);
    watched_.clear();
  }
  for (const auto& one : left)
    if (const auto watermark = one.lock()) watermark->end();
}

}  // namespace millrace::cuda
