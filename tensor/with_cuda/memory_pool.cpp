// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/memory_pool.h>

#include <algorithm>
#include <iterator>
#include <string>

#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/error.h>

namespace millrace::cuda {

MemoryPool::~MemoryPool() { release(); }

/// Whether all that uses a block was handed to CUDA, which can wait for it.
bool MemoryPool::handed(const Uses& uses) const {
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (!streams_[i]->is_handed(uses[i])) return false;
  return true;
}

/// Whether every stream but `home` is past its use. `asked` remembers the streams that were asked, each of which is once for an allocation; they know
/// nothing of what is being started.
bool MemoryPool::done(const Uses& uses, std::size_t home, std::uint32_t& asked) const {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (i == home || uses[i] == 0 || streams_[i]->seen() >= uses[i]) continue;
    if (!streams_[i]->is_handed(uses[i]) || (asked >> i & 1) != 0) return false;
    asked |= std::uint32_t{1} << i;
    if (!streams_[i]->idle() || streams_[i]->seen() < uses[i]) return false;
  }
  return true;
}

/// A block that may be used without waiting, among those given back last, which caches may hold, and first, whose users are the first to be done;
/// `free.size()` when there is none.
std::size_t MemoryPool::find(const std::vector<Block>& free, std::size_t home) const {
  constexpr std::size_t most_looked_at = 8;
  const std::size_t count = free.size(), last = std::min(count, most_looked_at), first = std::min(count - last, most_looked_at);
  std::uint32_t asked = 0;
  for (std::size_t back = 1; back <= last; ++back)
    if (done(free[count - back].uses, home, asked)) return count - back;
  for (std::size_t at = 0; at < first; ++at)
    if (done(free[at].uses, home, asked)) return at;
  return count;
}

/// A new block within the budget, or null.
void* MemoryPool::from_device(std::size_t size) {
  if (in_use_ > budget_ || cached_ > budget_ - in_use_ || size > budget_ - in_use_ - cached_) return nullptr;
  const OnDevice here(device_);
  void* pointer = nullptr;
  const cudaError_t code = cudaMalloc(&pointer, size);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  check(code, "cudaMalloc", device_);
  return pointer;
}

void MemoryPool::release() noexcept {
  for (auto& [size, one] : classes_) {
    const auto freed = std::erase_if(one.free, [this](const Block& block) {
      if (!handed(block.uses)) return false;
      static_cast<void>(cudaFree(block.pointer));  // waits for the device
      return true;
    });
    one.blocks -= freed;
    cached_ -= freed * size;
  }
}

void MemoryPool::wait(const Uses& uses, std::size_t home) const {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (i == home || uses[i] == 0 || streams_[i]->seen() >= uses[i]) continue;
    if (home == no_stream) {
      check(cudaStreamSynchronize(streams_[i]->queue().stream), "cudaStreamSynchronize", device_);
    } else {
      streams_[i]->order(std::min(uses[i], streams_[i]->handed()), streams_[home]->queue().stream, device_);
    }
  }
}

void MemoryPool::refuse(std::size_t bytes, std::size_t size) const {
  std::size_t free = 0;
  std::size_t total = 0;
  const OnDevice here(device_);
  static_cast<void>(cudaMemGetInfo(&free, &total));
  const std::string budget = budget_ == CachingResource::unlimited ? "no budget" : "a budget of " + std::to_string(budget_);
  throw OutOfMemoryError("memory on cuda:" + std::to_string(device_) + ": " + std::to_string(bytes) + " bytes (" + std::to_string(size) +
                         " as a block) were refused with " + std::to_string(in_use_) + " in use, nothing cached, " + budget + ", and " +
                         std::to_string(free) + " of the device's " + std::to_string(total) + " free");
}

void* MemoryPool::allocate(std::size_t bytes, std::size_t home) {
  const std::size_t size = CachingResource::class_size(bytes);
  Block block;
  {
    const std::lock_guard lock(mutex_);
    Class& one = classes_[size];
    const auto take = [&](std::size_t at) {
      block = one.free[at];
      one.free.erase(one.free.begin() + static_cast<std::ptrdiff_t>(at));
      cached_ -= size;
    };
    one.free.reserve(one.blocks + 1);  // so that giving one back never allocates
    if (const std::size_t at = find(one.free, home); at < one.free.size()) take(at);
    if (block.pointer == nullptr) {
      block.pointer = from_device(size);
      if (block.pointer != nullptr) ++one.blocks;
    }
    for (std::size_t at = one.free.size(); block.pointer == nullptr && at-- > 0;)
      if (handed(one.free[at].uses)) take(at);
    if (block.pointer == nullptr) {
      release();
      block.pointer = from_device(size);
      if (block.pointer == nullptr) refuse(bytes, size);
      ++one.blocks;
    }
    live_.insert_or_assign(static_cast<std::byte*>(block.pointer), Live{size, 0});
    in_use_ += size;
  }
  try {
    wait(block.uses, home);
  } catch (...) {
    deallocate(block.pointer, home);
    throw;
  }
  return block.pointer;
}

void MemoryPool::deallocate(void* pointer, std::size_t home) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(static_cast<std::byte*>(pointer));
  const Live live = found->second;
  live_.erase(found);
  Block block;
  block.pointer = pointer;
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (i == home || (live.users >> i & 1) != 0) block.uses[i] = streams_[i]->past();
  in_use_ -= live.size;
  cached_ += live.size;
  classes_.find(live.size)->second.free.push_back(block);
}

void MemoryPool::used(std::byte* pointer, std::size_t stream) {
  const std::lock_guard lock(mutex_);
  const auto behind = live_.upper_bound(pointer);
  if (behind == live_.begin()) return;
  const auto found = std::prev(behind);
  if (pointer < found->first + found->second.size) found->second.users |= std::uint32_t{1} << stream;
}

void MemoryPool::release_cached() noexcept {
  const std::lock_guard lock(mutex_);
  release();
}

}  // namespace millrace::cuda
