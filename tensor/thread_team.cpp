// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/thread_team.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

// Waking a sleeping thread costs some 18 µs, a spin well under one: kernels of one step follow each other closely.
constexpr int spins_before_sleep = 2000;

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadTeam::Workers {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<int> unfinished{0};
  std::atomic<bool> busy{false};
  bool stop = false;
  std::int64_t count = 0;
  std::int64_t chunk = 0;
  Body body = nullptr;
  void* callable = nullptr;

  ~Workers() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void share(int index) const {
    const std::int64_t begin = std::min(count, chunk * index);
    const std::int64_t end = std::min(count, begin + chunk);
    if (begin < end) body(callable, begin, end);
  }

  void work(int index) {
    std::fesetenv(FE_DFL_ENV);
    std::uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < spins_before_sleep && generation.load(std::memory_order_acquire) == seen; ++spin) relax();
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || generation.load(std::memory_order_acquire) != seen; });
        if (stop) return;
        seen = generation.load(std::memory_order_acquire);
      }
      share(index);
      unfinished.fetch_sub(1, std::memory_order_acq_rel);
    }
  }
};

ThreadTeam::ThreadTeam(int threads) : size_(threads) {
  if (threads < 1) throw ArgumentError("thread team: expected at least 1 thread, found " + std::to_string(threads));
  if (threads == 1) return;
  workers_ = std::make_unique<Workers>();
  for (int index = 1; index < threads; ++index) workers_->threads.emplace_back([workers = workers_.get(), index] { workers->work(index); });
}

ThreadTeam::~ThreadTeam() = default;

void ThreadTeam::run(std::int64_t count, std::int64_t grain, Body body, void* callable) {
  Workers& team = *workers_;
  if (team.busy.exchange(true, std::memory_order_acquire)) return body(callable, 0, count);  // called from inside the team
  {
    const std::lock_guard lock(team.mutex);
    team.count = count;
    team.chunk = std::max(grain, (count + size_ - 1) / size_);
    team.body = body;
    team.callable = callable;
    team.unfinished.store(size_ - 1, std::memory_order_relaxed);
    team.generation.fetch_add(1, std::memory_order_release);
  }
  team.wake.notify_all();
  team.share(0);
  while (team.unfinished.load(std::memory_order_acquire) != 0) relax();
  team.busy.store(false, std::memory_order_release);
}

}  // namespace millrace
