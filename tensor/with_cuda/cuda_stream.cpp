// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/cuda_stream.h>

#include <millrace/tensor/cuda_device.h>

namespace millrace::cuda {

CudaStream::CudaStream(std::shared_ptr<StreamState> state, std::shared_ptr<MemoryPool> pool, std::shared_ptr<MarkWords> words,
                       std::size_t index)
    : state_(std::move(state)),
      pool_(std::move(pool)),
      words_(std::move(words)),
      index_(index),
      memory_(std::make_shared<DeviceMemory>(pool_, index)),
      context_(CudaPlace{state_->queue().device}, team_, memory_, &state_->queue()) {
  state_->queue().memory = &memory_;
  state_->queue().state = state_.get();
}

CudaStream::~CudaStream() = default;

bool CudaStream::enter() noexcept {
  mutex_.lock();
  if (failed_ || !items_.empty()) {
    mutex_.unlock();
    return false;
  }
  ++issued_;
  if (depth_++ > 0) return true;
  state_->handing();
  static_cast<void>(cudaGetDevice(&before_));
  if (before_ != state_->queue().device) static_cast<void>(cudaSetDevice(state_->queue().device));
  return true;
}

void CudaStream::leave(std::exception_ptr error) noexcept {
  if (--depth_ == 0 && before_ != state_->queue().device) static_cast<void>(cudaSetDevice(before_));
  if (error) {
    // An error of the caller stays with the caller; an error of CUDA fails the stream.
    try {
      std::rethrow_exception(error);
    } catch (const CudaError& of_device) {
      if (of_device.is_sticky()) fail(error);
    } catch (...) {
    }
  }
  if (depth_ == 0) {
    state_->handed(issued_ - items_.size());
    drain();
  }
  mutex_.unlock();
}

void CudaStream::push(std::unique_ptr<Work> work) {
  const std::lock_guard lock(mutex_);
  items_.push_back({std::move(work), {}});
  ++issued_;
  drain();
}

void CudaStream::wait(const Point& point) {
  if (point.reached() || point.timeline() == state_->timeline()) return;
  const auto* const watermark = dynamic_cast<const CudaWatermark*>(point.timeline().get());
  if (watermark != nullptr && watermark->is_of(state_.get())) return;
  const std::lock_guard lock(mutex_);
  if (items_.empty() && pass(point)) return;
  items_.push_back({nullptr, point});
  ++issued_;
  drain();
}

/// True when what follows needs nothing more on the host to come behind `point`.
bool CudaStream::pass(const Point& point) {
  if (point.reached()) return true;
  if (point.error()) return false;
  if (auto* const watermark = dynamic_cast<CudaWatermark*>(point.timeline().get())) {
    const std::shared_ptr<StreamState> producer = watermark->producer();
    if (!watermark->order(point.value(), *state_)) return false;
    if (producer != nullptr) follow(producer->timeline(), producer->handed());
    return true;
  }
  const auto* timeline = dynamic_cast<const StreamTimeline*>(point.timeline().get());
  if (timeline == nullptr) return false;
  const std::shared_ptr<StreamState> other = timeline->state();
  if (other == nullptr || !other->order(point.value(), state_->queue().stream, state_->queue().device)) return false;
  follow(point.timeline(), point.value());
  return true;
}

/// CUDA says that the device got behind a point, not that all went well before: that is asked when this stream has got there.
void CudaStream::follow(const std::shared_ptr<Timeline>& other, std::uint64_t value) {
  state_->follow(std::static_pointer_cast<StreamTimeline>(other), value, issued_ - items_.size() + 1);
}

Point CudaStream::position() {
  const std::lock_guard lock(mutex_);
  return Point(state_->timeline(), issued_);
}

void CudaStream::uses(const std::shared_ptr<Allocation>& storage) {
  // By place, not by resource: the storage may be a part of other storage, with a resource of its own.
  const Place where = storage->resource().place();
  const auto* cuda = std::get_if<CudaPlace>(&where);
  if (cuda != nullptr && cuda->index == state_->queue().device) pool_->used(storage->data(), index_);
}

std::shared_ptr<Watermark> CudaStream::watermark(std::uint64_t steps) {
  auto made = std::make_shared<CudaWatermark>(state_, words_, state_->queue().device, steps);
  state_->add(made);
  return made;
}

void CudaStream::complete(std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  suspended_ = false;
  if (error) fail(error);
  if (!items_.empty()) items_.pop_front();
  state_->handed(issued_ - items_.size());
  drain();
}

void CudaStream::run(Work& work) noexcept {
  if (failed_) return;  // work behind a failure does not run
  try {
    const OnDevice here(state_->queue().device);
    work.run(context_);
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Starts what is queued until the queue is empty or its head must wait; the mutex is held.
void CudaStream::drain() noexcept {
  while (!suspended_ && depth_ == 0 && !items_.empty()) {
    Item& head = items_.front();
    if (head.work != nullptr) {
      // Taken out first: it may enqueue more, and its tensors go when it does.
      const std::unique_ptr<Work> work = std::move(head.work);
      suspended_ = true;
      state_->handing();
      run(*work);
      suspended_ = false;
    } else if (const Point point = head.point; !point.reached()) {
      bool passed = false;
      try {
        passed = pass(point);
      } catch (...) {
        fail(std::current_exception());
        passed = true;
      }
      suspended_ = !passed;
      if (!passed && point.timeline()->add(*this, point.value())) return;
      suspended_ = false;
      if (!passed)
        if (const std::exception_ptr error = point.error()) fail(error);
    }
    items_.pop_front();
    state_->handed(issued_ - items_.size());
  }
}

bool CudaStream::settle() {
  {
    const std::lock_guard lock(mutex_);
    if (!items_.empty() || depth_ > 0) return false;
  }
  return state_->settle();
}

void CudaStream::renew() {
  const std::lock_guard lock(mutex_);
  failed_ = false;
  state_->renew();
}

void CudaStream::fail(std::exception_ptr error) noexcept {
  failed_ = true;
  state_->doom(std::move(error));
}

}  // namespace millrace::cuda
