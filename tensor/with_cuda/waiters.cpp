// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/waiters.h>

#include <algorithm>
#include <chrono>

#include <millrace/tensor/with_cuda/stream_state.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::cuda {
namespace {

constexpr std::chrono::microseconds most_spinning{50}, longest_doze{1000};

void relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

void Waiters::watch(std::shared_ptr<StreamState> stream) { streams_.push_back({std::move(stream)}); }

void Waiters::notify() {
  const std::lock_guard lock(mutex_);
  if (stopped_ || spinning_) return;  // the spinning thread sees it
  if (asleep_ > 0) return wake_.notify_one();
  if (threads_.size() <= streams_.size()) threads_.emplace_back([this] { run(); });
}

/// A stream in flight that no thread blocks on, or null.
Waiters::Watched* Waiters::waiting() {
  for (Watched& one : streams_)
    if (!one.taken && one.stream->in_flight()) return &one;
  return nullptr;
}

/// A stream has a watermark with a waiter.
bool Waiters::watching() {
  return std::any_of(streams_.begin(), streams_.end(), [](const Watched& one) { return one.stream->watching(); });
}

/// Sleeps where nothing moved for a while and the awaited positions have no event: longer each time, up to a limit.
void Waiters::doze(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  for (Watched& one : streams_) one.stream->check_watched();
  lock.lock();
  if (stopped_) return;
  ++asleep_;
  wake_.wait_for(lock, doze_);
  --asleep_;
  doze_ = std::min(2 * doze_, longest_doze);
}

/// Spins until nothing is in flight or nothing has moved for a while; true in the latter case.
bool Waiters::spin(std::unique_lock<std::mutex>& lock) {
  spinning_ = true;
  auto moved = std::chrono::steady_clock::now();
  bool left = true;
  while (left) {
    left = waiting() != nullptr || watching();
    if (!left) break;
    lock.unlock();
    bool progress = false;
    for (int round = 0; round < 64 && !progress; ++round) {
      for (Watched& one : streams_) progress = one.stream->look() || progress;
      relax();
    }
    const auto now = std::chrono::steady_clock::now();
    if (progress) moved = now;
    if (progress) doze_ = most_spinning;
    lock.lock();
    if (now - moved > most_spinning) break;
  }
  spinning_ = false;
  return left;
}

void Waiters::run() {
  static_cast<void>(cudaSetDevice(device_));
  std::unique_lock lock(mutex_);
  for (;;) {
    ++asleep_;
    wake_.wait(lock, [&] { return stopped_ || (!spinning_ && (waiting() != nullptr || watching())); });
    --asleep_;
    if (stopped_) return;
    if (!spin(lock)) continue;
    Watched* one = waiting();
    if (one == nullptr) {
      doze(lock);
      continue;
    }
    one->taken = true;
    if (waiting() != nullptr || watching()) {
      if (asleep_ > 0) {
        wake_.notify_one();
      } else if (threads_.size() <= streams_.size() && !stopped_) {
        threads_.emplace_back([this] { run(); });
      }
    }
    const StreamState::Mark mark = one->stream->oldest_mark();
    lock.unlock();
    // The event may be recorded anew meanwhile, for a later mark: then this one is reached all the more.
    if (mark.event != nullptr) one->stream->woke(mark.value, cudaEventSynchronize(mark.event));
    lock.lock();
    one->taken = false;
  }
}

void Waiters::stop() noexcept {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace millrace::cuda
