// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/caching_resource.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include <millrace/tensor/error.h>

namespace millrace {

namespace {

constexpr std::size_t least = 64;
constexpr std::size_t most_small = 4096;

}  // namespace

struct CachingResource::Cache {
  /// The blocks of one size. `free` has room for all of them, so that giving one back never allocates.
  struct Class {
    std::size_t blocks = 0;
    std::vector<void*> free;
  };

  std::shared_ptr<MemoryResource> upstream;
  bool host_accessible = false;
  mutable std::mutex mutex;
  /// By size: multiples of `least` up to `most_small`, which tensors of loops take and give back all the time, and the rest.
  std::array<Class, most_small / least + 1> small;
  std::map<std::size_t, Class> large;
  Statistics statistics;

  Class& of_size(std::size_t size) { return size <= most_small ? small[size / least] : large[size]; }

  bool fits(std::size_t size) const {
    return statistics.in_use <= statistics.budget && statistics.cached <= statistics.budget - statistics.in_use &&
           size <= statistics.budget - statistics.in_use - statistics.cached;
  }
  void release() noexcept {
    for (std::size_t i = 0; i < small.size(); ++i) release(small[i], i * least);
    for (auto& [size, one] : large) release(one, size);
    statistics.cached = 0;
  }
  void release(Class& one, std::size_t size) noexcept {
    for (void* pointer : one.free) upstream->deallocate(pointer, size);
    one.blocks -= one.free.size();
    one.free.clear();
  }
  /// A new block, or null.
  void* from_upstream(std::size_t size) {
    if (!fits(size)) return nullptr;
    try {
      void* pointer = upstream->allocate(size);
      ++statistics.upstream_allocations;
      return pointer;
    } catch (const OutOfMemoryError&) {
      return nullptr;
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  void took(std::size_t size) {
    ++statistics.allocations;
    statistics.in_use += size;
    statistics.peak = std::max(statistics.peak, statistics.in_use);
  }
};

std::size_t CachingResource::class_size(std::size_t bytes) {
  if (bytes <= 4 * least) return std::max(least, (bytes + least - 1) / least * least);
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  if (bytes > unlimited / 2) throw OutOfMemoryError("cache: " + std::to_string(bytes) + " bytes are more than any memory has");
  return (bytes + step - 1) / step * step;
}

CachingResource::CachingResource(std::shared_ptr<MemoryResource> upstream, std::size_t budget) : cache_(std::make_unique<Cache>()) {
  if (!upstream) throw ArgumentError("cache: expected a resource to take memory from, found null");
  cache_->upstream = std::move(upstream);
  cache_->host_accessible = cache_->upstream->host_accessible();
  cache_->statistics.budget = budget;
}

CachingResource::~CachingResource() { cache_->release(); }

void* CachingResource::allocate(std::size_t bytes) {
  const std::size_t size = class_size(bytes);
  const std::lock_guard lock(cache_->mutex);
  Cache::Class& one = cache_->of_size(size);
  if (!one.free.empty()) {
    void* pointer = one.free.back();
    one.free.pop_back();
    cache_->statistics.cached -= size;
    cache_->took(size);
    return pointer;
  }
  one.free.reserve(one.blocks + 1);
  void* pointer = cache_->from_upstream(size);
  if (pointer == nullptr) {
    cache_->release();
    pointer = cache_->from_upstream(size);
  }
  if (pointer == nullptr) {
    const Statistics& now = cache_->statistics;
    const std::string budget = now.budget == unlimited ? "no budget" : "a budget of " + std::to_string(now.budget);
    throw OutOfMemoryError("memory on " + place().to_string() + ": " + std::to_string(bytes) + " bytes (" + std::to_string(size) +
                           " as a block) were refused with " + std::to_string(now.in_use) + " in use, nothing cached and " + budget);
  }
  ++one.blocks;
  cache_->took(size);
  return pointer;
}

void CachingResource::deallocate(void* pointer, std::size_t bytes) noexcept {
  const std::size_t size = class_size(bytes);
  const std::lock_guard lock(cache_->mutex);
  cache_->of_size(size).free.push_back(pointer);
  cache_->statistics.in_use -= size;
  cache_->statistics.cached += size;
}

Place CachingResource::place() const { return cache_->upstream->place(); }
bool CachingResource::host_accessible() const noexcept { return cache_->host_accessible; }

void CachingResource::release_cached() noexcept {
  const std::lock_guard lock(cache_->mutex);
  cache_->release();
}

CachingResource::Statistics CachingResource::statistics() const {
  const std::lock_guard lock(cache_->mutex);
  return cache_->statistics;
}

}  // namespace millrace
