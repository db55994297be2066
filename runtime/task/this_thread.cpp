// SPDX-License-Identifier: Apache-2.0
// The thread-local state of the task layer, all of it: a cache of free frames, and which executor the thread runs.
// Neither means anything to a task: a task may leave a thread at any await and forget it.
#include <array>
#include <atomic>
#include <cstdint>
#include <new>

#include <millrace/runtime/task/executor.h>
#include <millrace/runtime/task/frame_pool.h>
#include <millrace/tensor/sanitized.h>

namespace millrace {
namespace {

constexpr std::size_t class_bytes = 64;
constexpr std::size_t classes = 64;            // frames up to 4 KiB
constexpr std::size_t cached_per_class = 512;  // blocks a thread keeps, beyond which memory goes back to the heap

struct FreeBlock {
  FreeBlock* next;
};

struct FreeList {
  FreeBlock* first = nullptr;
  std::size_t size = 0;
};

/// The number of live frames that one thread at a time counts. Counts are never freed, and `next` is never changed: a child process keeps all counts,
/// but lacks the other threads of its parent and their thread-local objects.
struct alignas(64) LiveCount {
  std::atomic<std::int64_t> live{0};  // written by the owning thread alone
  std::atomic<bool> owned{true};
  LiveCount* next = nullptr;
};
constinit std::atomic<LiveCount*> live_counts{nullptr};
constinit std::atomic<std::int64_t> live_elsewhere{0};  // of threads that are ending
constinit thread_local bool cache_ended = false;

/// A count that no thread owns, else a new one.
LiveCount* own_count() {
  for (LiveCount* count = live_counts.load(std::memory_order_acquire); count != nullptr; count = count->next)
    if (!count->owned.exchange(true, std::memory_order_acquire)) return count;
  auto* const made = new LiveCount();
  made->next = live_counts.load(std::memory_order_relaxed);
  while (!live_counts.compare_exchange_weak(made->next, made, std::memory_order_acq_rel, std::memory_order_relaxed)) {
  }
  return made;
}

class FrameCache {
 public:
  FrameCache() : count_(own_count()) {}
  ~FrameCache() {
    cache_ended = true;
    count_->owned.store(false, std::memory_order_release);
    for (std::size_t i = 0; i < classes; ++i) {
      while (FreeBlock* block = take(i)) ::operator delete(block, (i + 1) * class_bytes);
    }
  }

  FreeBlock* take(std::size_t size_class) noexcept {
    FreeList& list = lists_[size_class];
    FreeBlock* block = list.first;
    if (block == nullptr) return nullptr;
    list.first = block->next;
    --list.size;
    return block;
  }
  bool keep(void* memory, std::size_t size_class) noexcept {
    FreeList& list = lists_[size_class];
    if (list.size == cached_per_class) return false;
    list.first = new (memory) FreeBlock{list.first};
    ++list.size;
    return true;
  }
  // Only the owning thread writes, so a plain sum is enough; `live_frames` reads from elsewhere.
  void count(std::int64_t change) noexcept {
    count_->live.store(count_->live.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }

 private:
  std::array<FreeList, classes> lists_{};
  LiveCount* count_;
};

// Null while the thread is ending: then memory comes from the heap.
FrameCache* this_cache() {
  if (cache_ended) return nullptr;
  thread_local FrameCache cache;
  return &cache;
}

void count(FrameCache* cache, std::int64_t change) noexcept {
  if (cache != nullptr) {
    cache->count(change);
  } else {
    live_elsewhere.fetch_add(change, std::memory_order_relaxed);
  }
}

constinit thread_local const Executor* current_executor = nullptr;

}  // namespace

void* frame_allocate(std::size_t bytes, FrameCount counted) {
  FrameCache* cache = this_cache();
  const std::size_t size_class = (bytes - 1) / class_bytes;
  void* memory = nullptr;
  if (sanitized || size_class >= classes) {
    memory = ::operator new(bytes);
  } else {
    if (cache != nullptr) memory = cache->take(size_class);
    if (memory == nullptr) memory = ::operator new((size_class + 1) * class_bytes);
  }
  if (counted == FrameCount::counted) count(cache, 1);
  return memory;
}

void frame_free(void* memory, std::size_t bytes, FrameCount counted) noexcept {
  FrameCache* cache = this_cache();
  if (counted == FrameCount::counted) count(cache, -1);
  const std::size_t size_class = (bytes - 1) / class_bytes;
  if (sanitized || size_class >= classes) {
    ::operator delete(memory, bytes);
  } else if (cache == nullptr || !cache->keep(memory, size_class)) {
    ::operator delete(memory, (size_class + 1) * class_bytes);
  }
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
