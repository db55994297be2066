// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace millrace {

/// Memory of small objects that come and go with each run: free lists by size class and thread, so that nothing is asked of the heap after warm-up.
/// Memory taken on one thread may be given back on another. Aligned for any type that is not over-aligned; large blocks come from the heap. Throws
/// std::bad_alloc.
void* pool_allocate(std::size_t bytes);
void pool_free(void* memory, std::size_t bytes) noexcept;

template <class T>
struct PooledAllocator {
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  using value_type = T;

  PooledAllocator() noexcept = default;
  template <class U>
  PooledAllocator(const PooledAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) { return static_cast<T*>(pool_allocate(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept { pool_free(memory, count * sizeof(T)); }
  template <class U>
  bool operator==(const PooledAllocator<U>&) const noexcept {
    return true;
  }
};

template <class T>
using PooledVector = std::vector<T, PooledAllocator<T>>;

/// Base of classes whose objects live there.
struct Pooled {
  static void* operator new(std::size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* memory, std::size_t bytes) noexcept { pool_free(memory, bytes); }
};

/// As std::make_shared.
template <class T, class... Args>
std::shared_ptr<T> make_pooled(Args&&... args) {
  return std::allocate_shared<T>(PooledAllocator<T>(), std::forward<Args>(args)...);
}

namespace internal {

/// The same for data of tensors: whole lines of a cache, aligned to them; `bytes` is a multiple of their length. Null where the heap refuses.
inline constexpr std::size_t line_bytes = 64;
void* take_lines(std::size_t bytes) noexcept;
void give_lines(void* memory, std::size_t bytes) noexcept;

}  // namespace internal
}  // namespace millrace
