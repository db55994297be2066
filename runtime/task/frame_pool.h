// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace millrace {

/// Memory of coroutine frames and task records: free lists per size class and thread, so that no step allocates after warm-up.
/// Memory taken on one thread may be given back on another. Aligned for any type that is not over-aligned. Throws std::bad_alloc.
void* frame_allocate(std::size_t bytes);
void frame_free(void* memory, std::size_t bytes) noexcept;

/// Coroutine frames and task records of this process that are alive now. Zero once every run has ended: a test of any length must leave
/// it as it found it.
std::size_t live_frames() noexcept;

/// The same memory for containers and shared states.
template <class T>
struct FrameAllocator {
  using value_type = T;
  FrameAllocator() = default;
  template <class U>
  FrameAllocator(const FrameAllocator<U>&) noexcept {}
  T* allocate(std::size_t n) { return static_cast<T*>(frame_allocate(n * sizeof(T))); }
  void deallocate(T* memory, std::size_t n) noexcept { frame_free(memory, n * sizeof(T)); }
  template <class U>
  friend bool operator==(const FrameAllocator&, const FrameAllocator<U>&) noexcept {
    return true;
  }
};

/// Base of what lives in that memory.
struct InFramePool {
  static void* operator new(std::size_t bytes) { return frame_allocate(bytes); }
  static void operator delete(void* memory, std::size_t bytes) noexcept { frame_free(memory, bytes); }
};

}  // namespace millrace
