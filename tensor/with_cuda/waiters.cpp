// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/waiters.h>

#include <algorithm>
#include <utility>

#include <millrace/tensor/start_thread.h>
#include <millrace/tensor/with_cuda/stream_state.h>

#if defined(__linux__)
#include <sys/prctl.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::cuda {
namespace {

constexpr std::chrono::microseconds most_spinning{50}, shortest_nap{10}, longest_nap{1000};

void relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

void Waiters::watch(std::shared_ptr<StreamState> stream) { streams_.push_back(std::move(stream)); }

void Waiters::notify() {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (!thread_.joinable()) thread_ = start_thread("CUDA: the thread that waits for streams", [this] { run(); });
  notified_ = true;
  if (!soon_) soon_.emplace();  // here, since this thread may be the one that goes to sleep next
  if (sleeping_) wake_.notify_one();
}

bool Waiters::in_flight() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& one) { return one->in_flight(); });
}

/// Looks at the words of all streams, `rounds` times at most. True when there was progress.
bool Waiters::look(int rounds) {
  bool progress = false;
  for (int round = 0; round < rounds && !progress; ++round) {
    for (const auto& one : streams_) progress = one->look() || progress;
    relax();
  }
  return progress;
}

/// Asks CUDA, which knows of errors, too.
bool Waiters::ask() {
  bool progress = false;
  for (const auto& one : streams_) progress = one->ask_device() || progress;
  return progress;
}

void Waiters::run() {
  static_cast<void>(cudaSetDevice(device_));
#if defined(__linux__)
  static_cast<void>(::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL));  // a nap takes 50 µs more otherwise
#endif
  std::unique_lock lock(mutex_);
  const auto sleep = [&](auto&& wait) {
    sleeping_ = true;
    wait();
    sleeping_ = false;
  };
  for (;;) {
    sleep([&] { wake_.wait(lock, [&] { return stopped_ || notified_; }); });
    auto moved = Clock::now(), asked = moved;
    for (bool late = false; !stopped_;) {
      const bool fresh = std::exchange(notified_, false);
      lock.unlock();
      bool progress = look(late ? 1 : 64);
      const auto now = Clock::now();
      if (late || now - asked > longest_nap) {
        progress = ask() || progress;
        asked = now;
      }
      if (progress || fresh) moved = now;
      late = now - moved > most_spinning;
      const bool left = in_flight();
      lock.lock();
      if (notified_) continue;
      if (late || !left)
        soon_.reset();
      else if (!soon_)
        soon_.emplace();
      if (!left) break;
      if (!late) continue;
      const auto nap = std::clamp<Clock::duration>((now - moved) / 200, shortest_nap, longest_nap);
      sleep([&] { wake_.wait_for(lock, nap, [&] { return stopped_ || notified_; }); });
    }
    if (stopped_) return soon_.reset();
  }
}

void Waiters::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace millrace::cuda
