// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace millrace {

/// Memory of coroutine frames and task records, of the pool (tensor/pool.h), so that no step allocates after warm-up. Throws std::bad_alloc.
void* frame_allocate(std::size_t bytes);
void frame_free(void* memory, std::size_t bytes) noexcept;

/// Coroutine frames and task records of this process that are alive now. Zero once every run has ended: a test of any
/// length must leave it as it found it.
std::size_t live_frames() noexcept;

/// Base of what lives in that memory.
struct InFramePool {
  static void* operator new(std::size_t bytes) { return frame_allocate(bytes); }
  static void operator delete(void* memory, std::size_t bytes) noexcept { frame_free(memory, bytes); }
};

}  // namespace millrace
