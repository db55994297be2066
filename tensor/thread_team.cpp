// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/thread_team.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include <millrace/tensor/error.h>
#include <millrace/tensor/kernel_floats.h>
#include <millrace/tensor/start_thread.h>

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
  explicit Workers(int size) : taken(static_cast<std::size_t>(size)), asleep(static_cast<std::size_t>(size)) {
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
  }

  std::vector<std::thread> threads;
  std::vector<std::atomic<bool>> taken;  ///< by share: a thread has begun it
  std::vector<char> asleep;              ///< by thread; `mutex`
  cpu_set_t cores;                       ///< the cores that the process may use
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

  /// Does a share that no thread has begun. Taking it shows what `run` wrote, of this generation or, for a thread that comes late, of a later one.
  void share(int index) {
    if (taken[static_cast<std::size_t>(index)].exchange(true, std::memory_order_acq_rel)) return;
    const std::int64_t begin = std::min(count, chunk * index);
    const std::int64_t end = std::min(count, begin + chunk);
    if (begin < end) body(callable, begin, end);
    unfinished.fetch_sub(1, std::memory_order_acq_rel);
  }

  /// A sleeping thread wakes on another core than the caller's. Where cores share no cache, a scheduler wakes a thread beside the one that
  /// woke it, and takes milliseconds to see that another core is free.
  void part_from_caller() {
    cpu_set_t others = cores;
    const int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE) return;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0) return;
    for (std::size_t i = 0; i < threads.size(); ++i)
      if (asleep[i + 1] != 0) pthread_setaffinity_np(threads[i].native_handle(), sizeof others, &others);
  }

  void work(int index) {
    const KernelFloats floats;
    std::uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < spins_before_sleep && generation.load(std::memory_order_acquire) == seen; ++spin) relax();
      {
        std::unique_lock lock(mutex);
        asleep[static_cast<std::size_t>(index)] = 1;
        wake.wait(lock, [&] { return stop || generation.load(std::memory_order_acquire) != seen; });
        asleep[static_cast<std::size_t>(index)] = 0;
        if (stop) return;
        seen = generation.load(std::memory_order_acquire);
      }
      share(index);
    }
  }
};

ThreadTeam::ThreadTeam(int threads) : size_(threads) {
  if (threads < 1) throw ArgumentError("thread team: expected at least 1 thread, found " + std::to_string(threads));
  if (threads == 1) return;
  workers_ = std::make_unique<Workers>(threads);
  workers_->threads.reserve(static_cast<std::size_t>(threads));
  for (int index = 1; index < threads; ++index)
    workers_->threads.push_back(start_thread("thread team: thread " + std::to_string(index + 1) + " of " + std::to_string(threads),
                                             [workers = workers_.get(), index] { workers->work(index); }));
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
    team.unfinished.store(size_, std::memory_order_relaxed);
    for (std::atomic<bool>& taken : team.taken) taken.store(false, std::memory_order_release);
    team.generation.fetch_add(1, std::memory_order_release);
    team.part_from_caller();
  }
  team.wake.notify_all();
  // A thread that is not awake by then costs nothing: its share is done here. One that has begun may have been pushed off its core.
  for (int index = 0; index < size_; ++index) team.share(index);
  for (int spin = 0; team.unfinished.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < spins_before_sleep)
      relax();
    else
      std::this_thread::yield();
  }
  team.busy.store(false, std::memory_order_release);
}

}  // namespace millrace
