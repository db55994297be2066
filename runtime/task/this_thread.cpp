// SPDX-License-Identifier: Apache-2.0
// The thread-local state of the task layer, all of it: a count of live frames, and which executor the thread runs.
// Neither means anything to a task: a task may leave a thread at any await and forget it.
#include <atomic>
#include <cstdint>
#include <new>

#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/frame_pool.h>
#include <millrace/tensor/pool.h>

namespace millrace {
namespace {

/// The number of live frames that one thread at a time counts. Counts are never freed, and `next` is never changed: a child process keeps all counts,
/// but lacks the other threads of its parent and their thread-local objects.
struct alignas(64) LiveCount {
  std::atomic<std::int64_t> live{0};  // written by the owning thread alone
  std::atomic<bool> owned{true};
  LiveCount* next = nullptr;
};
constinit std::atomic<LiveCount*> live_counts{nullptr};
constinit std::atomic<std::int64_t> live_elsewhere{0};  // of threads that are ending, or have no count of their own
constinit thread_local bool count_ended = false;

/// A count that no thread owns, else a new one; null without memory.
LiveCount* own_count() noexcept {
  for (LiveCount* count = live_counts.load(std::memory_order_acquire); count != nullptr; count = count->next)
    if (!count->owned.exchange(true, std::memory_order_acquire)) return count;
  auto* const made = new (std::nothrow) LiveCount();
  if (made == nullptr) return nullptr;
  made->next = live_counts.load(std::memory_order_relaxed);
  while (!live_counts.compare_exchange_weak(made->next, made, std::memory_order_acq_rel, std::memory_order_relaxed)) {
  }
  return made;
}

/// The count of this thread. Only the owning thread writes, so a plain sum is enough; `live_frames` reads from elsewhere.
class OwnCount {
 public:
  OwnCount() noexcept : count_(own_count()) {}
  ~OwnCount() {
    count_ended = true;
    if (count_ != nullptr) count_->owned.store(false, std::memory_order_release);
  }
  void add(std::int64_t change) noexcept {
    if (count_ == nullptr) {
      live_elsewhere.fetch_add(change, std::memory_order_relaxed);
      return;
    }
    count_->live.store(count_->live.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }

 private:
  LiveCount* count_;
};

void add_frames(std::int64_t change) noexcept {
  if (count_ended) {
    live_elsewhere.fetch_add(change, std::memory_order_relaxed);
    return;
  }
  thread_local OwnCount count;
  count.add(change);
}

constinit thread_local const Executor* current_executor = nullptr;

}  // namespace

void* frame_allocate(std::size_t bytes) {
  void* const memory = pool_allocate(bytes);
  add_frames(1);
  return memory;
}

void frame_free(void* memory, std::size_t bytes) noexcept {
  add_frames(-1);
  pool_free(memory, bytes);
}

std::size_t live_frames() noexcept {
  std::int64_t sum = live_elsewhere.load(std::memory_order_relaxed);
  for (const LiveCount* count = live_counts.load(std::memory_order_acquire); count != nullptr; count = count->next)
    sum += count->live.load(std::memory_order_relaxed);
  return static_cast<std::size_t>(sum);
}

RuntimeThread::RuntimeThread(const Executor& executor) noexcept : outer_(current_executor) { current_executor = &executor; }
RuntimeThread::~RuntimeThread() { current_executor = outer_; }
const Executor* RuntimeThread::current() noexcept { return current_executor; }

}  // namespace millrace
