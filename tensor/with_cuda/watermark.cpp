// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/watermark.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include <cuda.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/with_cuda/stream_state.h>

namespace millrace::cuda {
namespace {

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

WaitValue wait_value() {
  static const WaitValue found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t code = cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &entry, 12000, cudaEnableDefault, &result);
    return code == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<WaitValue>(entry) : nullptr;
  }();
  return found;
}

}  // namespace

MarkWords::~MarkWords() {
  for (void* block : blocks_) static_cast<void>(cudaFreeHost(block));
}

MarkWord MarkWords::take() {
  constexpr std::size_t words = 64, stride = 8;  // a line of the host's cache each
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    const OnDevice here(device_);
    void* made = nullptr;
    void* there = nullptr;
    check(cudaHostAlloc(&made, words * stride * sizeof(std::uint64_t), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc",
          device_);
    blocks_.push_back(made);
    check(cudaHostGetDevicePointer(&there, made, 0), "cudaHostGetDevicePointer", device_);
    std::fill_n(static_cast<std::uint64_t*>(made), words * stride, std::uint64_t{0});
    free_.reserve(blocks_.size() * words);  // so that giving one back never allocates
    for (std::size_t i = 0; i < words; ++i)
      free_.push_back({static_cast<std::uint64_t*>(made) + i * stride, static_cast<std::uint64_t*>(there) + i * stride, 0});
  }
  const MarkWord taken = free_.back();
  free_.pop_back();
  return taken;
}

void MarkWords::give_back(MarkWord word, std::uint64_t steps) noexcept {
  word.base += steps;
  const std::lock_guard lock(mutex_);
  free_.push_back(word);
}

CudaWatermark::CudaWatermark(std::weak_ptr<StreamState> producer, std::shared_ptr<MarkWords> words, int device, std::uint64_t steps)
    : producer_(std::move(producer)), words_(std::move(words)), word_(words_->take()), device_(device), steps_(steps) {}

CudaWatermark::~CudaWatermark() {
  if (next_ != nullptr) static_cast<void>(cudaEventDestroy(next_));
  for (const Launch& one : launches_) static_cast<void>(cudaEventDestroy(one.begun));
  words_->give_back(word_, steps_);
}

cudaEvent_t CudaWatermark::launching() {
  const std::lock_guard lock(mutex_);
  if (next_ == nullptr) check(cudaEventCreateWithFlags(&next_, cudaEventDisableTiming), "cudaEventCreateWithFlags", device_);
  return next_;
}

void CudaWatermark::launched(std::uint64_t steps) {
  {
    const std::lock_guard lock(mutex_);
    launches_.push_back({steps, std::exchange(next_, nullptr)});
    if (wanted_ <= reached()) return;
  }
  watch();
}

void CudaWatermark::watch() {
  if (const std::shared_ptr<StreamState> producer = producer_.lock()) producer->watch(shared_from_this());
}

void CudaWatermark::asked(std::uint64_t value) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::max(wanted_, value);
    if (launches_.empty()) return;  // `launched` comes back to it
  }
  watch();
}

std::uint64_t CudaWatermark::seen() const noexcept {
  const std::uint64_t word = std::atomic_ref(*word_.on_host).load(std::memory_order_acquire);
  return word <= word_.base ? 0 : std::min(word - word_.base, steps_);
}

std::uint64_t CudaWatermark::due() const {
  const std::lock_guard lock(mutex_);
  return launches_.empty() ? 0 : std::min(wanted_, launches_.back().steps);
}

bool CudaWatermark::order(std::uint64_t value, StreamState& other) {
  constexpr unsigned greater_or_equal = 0;  // CU_STREAM_WAIT_VALUE_GEQ
  if (seen() >= value) return true;
  const Queue& queue = other.queue();
  {
    const std::lock_guard lock(mutex_);
    const auto launch = std::find_if(launches_.begin(), launches_.end(), [value](const Launch& one) { return one.steps >= value; });
    if (launch == launches_.end() || wait_value() == nullptr) return false;
    follow(value, other);
    const OnDevice there(queue.device);
    check(cudaStreamWaitEvent(queue.stream, launch->begun, 0), "cudaStreamWaitEvent", queue.device);
    const auto code = static_cast<cudaError_t>(
        wait_value()(queue.stream, reinterpret_cast<CUdeviceptr>(word_.on_device), word_.base + value, greater_or_equal));
    if (code == cudaErrorNotSupported) return false;
    check(code, "cuStreamWaitValue64", queue.device);
  }
  // A waiter for that stream does not see a failure of this one.
  if (queue.device != device_) asked(value);
  if (const std::exception_ptr failed = error()) abandon(failed);  // before the follower was known
  return true;
}

/// The mutex is held.
void CudaWatermark::follow(std::uint64_t value, StreamState& other) {
  const std::weak_ptr<StreamState> stream = other.weak_from_this();
  for (Follower& one : followers_)
    if (!one.stream.owner_before(stream) && !stream.owner_before(one.stream)) {
      one.value = std::max(one.value, value);
      return;
    }
  followers_.push_back({stream, other.queue().device, value});
}

void CudaWatermark::abandon(std::exception_ptr error) noexcept {
  fail(error);
  std::vector<Follower> followers;
  {
    const std::lock_guard lock(mutex_);
    followers.swap(followers_);
  }
  const std::uint64_t seen = this->seen();
  std::erase_if(followers, [seen](const Follower& one) { return one.value <= seen; });
  for (const Follower& one : followers)
    if (const std::shared_ptr<StreamState> stream = one.stream.lock()) stream->doom(error);
  if (std::any_of(followers.begin(), followers.end(), [this](const Follower& one) { return one.device != device_; }))
    std::atomic_ref(*word_.on_host).store(word_.base + steps_, std::memory_order_release);
}

void CudaWatermark::end() noexcept {
  advance(seen());
  if (reached() < steps_)
    abandon(std::make_exception_ptr(Error("watermark on cuda:" + std::to_string(device_) + ": the kernel ended behind step " +
                                          std::to_string(reached()) + " of " + std::to_string(steps_))));
}

}  // namespace millrace::cuda
