// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/cpu_stream.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>

#include <millrace/tensor/kernel_floats.h>
#include <millrace/tensor/work_failure.h>

namespace millrace {
struct CpuStream::Queue {
  struct Item {
    std::unique_ptr<Work> work;  // or null: wait for `point`
    Point point;
  };
  /// The number of pieces of work and waits that were enqueued, times `one`, and two flags. One word, so that work in the caller takes no lock.
  std::atomic<std::uint64_t> word{0};
  static constexpr std::uint64_t busy = 1;    // work runs, or the head waits for a point; the thread that sets it clears it
  static constexpr std::uint64_t queued = 2;  // there are items, or the stream has failed: nothing runs in the caller
  static constexpr std::uint64_t one = 4;
  std::mutex mutex;  // of what follows, and held by all who set `queued`
  std::deque<Item> items;
  std::exception_ptr failed;

  std::uint64_t issued() const noexcept { return word.load(std::memory_order_acquire) / one; }
  /// Another item was queued; the mutex is held. Whether the caller has to drain the queue.
  bool count() noexcept {
    std::uint64_t found = word.load(std::memory_order_relaxed);
    while (!word.compare_exchange_weak(found, (found + one) | busy | queued, std::memory_order_acq_rel)) {
    }
    return (found & busy) == 0;
  }
  std::optional<KernelFloats> floats;  // of the thread that has entered
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
};

CpuStream::CpuStream(std::shared_ptr<ThreadTeam> team, std::shared_ptr<MemoryResource> memory)
    : team_(std::move(team)), memory_(std::move(memory)), context_(CpuPlace{}, *team_, memory_), queue_(std::make_unique<Queue>()) {}

CpuStream::~CpuStream() = default;

bool CpuStream::enter() noexcept {
  std::uint64_t found = queue_->word.load(std::memory_order_relaxed);
  do {
    if ((found & (Queue::busy | Queue::queued)) != 0) return false;
  } while (!queue_->word.compare_exchange_weak(found, (found + Queue::one) | Queue::busy, std::memory_order_acq_rel));
  queue_->floats.emplace();
  return true;
}

void CpuStream::leave(std::exception_ptr) noexcept {
  queue_->floats.reset();
  std::uint64_t found = queue_->word.load(std::memory_order_relaxed);
  const bool alone = (found & Queue::queued) == 0;
  if (!alone || !queue_->word.compare_exchange_strong(found, found & ~Queue::busy, std::memory_order_acq_rel)) return drain();
  queue_->timeline->advance(found / Queue::one);
}

void CpuStream::push(std::unique_ptr<Work> work) {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->items.push_back({std::move(work), {}});
    if (!queue_->count()) return;
  }
  drain();
}

void CpuStream::wait(const Point& point) {
  if (point.reached() || point.timeline() == queue_->timeline) return;
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->items.push_back({nullptr, point});
    if (!queue_->count()) return;
  }
  drain();
}

Point CpuStream::position() { return Point(queue_->timeline, queue_->issued()); }

void CpuStream::complete(std::exception_ptr error) noexcept {
  if (error) {
    const std::lock_guard lock(queue_->mutex);
    if (!queue_->failed) queue_->failed = error;
  }
  drain();
}

/// Runs queued work until the queue is empty or its head must wait; the caller owns `busy`.
void CpuStream::drain() noexcept {
  for (;;) {
    Queue::Item item;
    std::exception_ptr failed;
    std::uint64_t before = 0;
    {
      const std::lock_guard lock(queue_->mutex);
      before = queue_->issued() - queue_->items.size();
      failed = queue_->failed;
      if (!queue_->items.empty()) {
        item = std::move(queue_->items.front());
        queue_->items.pop_front();
      } else {
        queue_->word.store(before * Queue::one | (failed ? Queue::queued : 0), std::memory_order_release);
      }
    }
    if (failed) queue_->timeline->fail(failed);
    queue_->timeline->advance(before);
    if (item.work == nullptr && item.point.timeline() == nullptr) return;
    if (item.work == nullptr) {
      if (!item.point.reached() && item.point.timeline()->add(*this, item.point.value())) return;
      if (std::exception_ptr error = item.point.error()) {
        const std::lock_guard lock(queue_->mutex);
        if (!queue_->failed) queue_->failed = error;
      }
      continue;
    }
    if (failed) continue;  // work behind a failure does not run
    const KernelFloats floats;
    try {
      item.work->run(context_);
    } catch (...) {
      std::exception_ptr failure = failure_of_work(std::current_exception(), item.work->origin, place());
      const std::lock_guard lock(queue_->mutex);
      if (!queue_->failed) queue_->failed = std::move(failure);
    }
  }
}

}  // namespace millrace
