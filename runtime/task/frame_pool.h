// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace millrace {

/// Memory of coroutine frames and task records: free lists per size class and thread, so that no step allocates after
/// warm-up. Memory taken on one thread may be given back on another. Aligned for any type that is not over-aligned.
/// Throws std::bad_alloc. A `counted` frame shows in `live_frames`.
enum class FrameCount : bool { uncounted, counted };
void* frame_allocate(std::size_t bytes, FrameCount count);
void frame_free(void* memory, std::size_t bytes, FrameCount count) noexcept;

/// Coroutine frames and task records of this process that are alive now. Zero once every run has ended: a test of any
/// length must leave it as it found it.
std::size_t live_frames() noexcept;

/// Base of what lives in that memory.
template <FrameCount count>
struct InPool {
  static void* operator new(std::size_t bytes) { return frame_allocate(bytes, count); }
  static void operator delete(void* memory, std::size_t bytes) noexcept { frame_free(memory, bytes, count); }
};
using CountedInFramePool = InPool<FrameCount::counted>;  // frames and tasks
using InFramePool = InPool<FrameCount::uncounted>;       // states that handles may keep after the tasks have gone

}  // namespace millrace
