// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include <millrace/tensor/place.h>
#include <millrace/tensor/point.h>

namespace millrace {

/// Where bytes come from, on one place. Thread-safe. Implementations: `host_memory()`, `CachingResource`, and those of backends.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// At least `bytes` bytes aligned to 64, never null; 0 bytes are legal. OutOfMemoryError names sizes.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Gives back what `allocate(bytes)` gave.
  virtual void deallocate(void* pointer, std::size_t bytes) noexcept = 0;
  virtual Place place() const = 0;
  /// True when host code may dereference the memory.
  virtual bool host_accessible() const noexcept = 0;
};

/// The host's heap: no cache, no budget, no state.
const std::shared_ptr<MemoryResource>& host_memory();

/// One block of memory, and what is known about its contents. Shared by the tensors that view it.
class Allocation {
 public:
  Allocation(std::shared_ptr<MemoryResource> resource, std::size_t bytes);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  const MemoryResource& resource() const noexcept { return *resource_; }
  const std::shared_ptr<MemoryResource>& shared_resource() const noexcept { return resource_; }

  /// Whether anything was, or was enqueued to be, written here.
  bool written() const noexcept { return written_.load(std::memory_order_acquire); }
  void mark_written() noexcept { written_.store(true, std::memory_order_release); }
  /// Frozen storage is never written again: a TensorArray shares it. Storage of no bytes does not freeze.
  bool frozen() const noexcept { return frozen_.load(std::memory_order_acquire); }
  void freeze() noexcept { frozen_.store(bytes_ > 0, std::memory_order_release); }

  /// The point after which the latest contents are there. Reached at once for what the host wrote.
  Point ready() const;
  void set_ready(const Point& point);

 private:
  std::shared_ptr<MemoryResource> resource_;
  std::byte* data_;
  std::size_t bytes_;
  std::atomic<bool> written_{false};
  std::atomic<bool> frozen_{false};
  std::atomic<bool> pending_{false};
  mutable std::mutex mutex_;
  Point ready_;
};

}  // namespace millrace
