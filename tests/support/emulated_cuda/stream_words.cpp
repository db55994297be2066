// SPDX-License-Identifier: Apache-2.0
// Streams that wait for a word.
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace {

std::atomic<cudaError_t> answer{cudaSuccess};
std::atomic<std::size_t> waits{0};

CUresult wait_value(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags) {
  if (flags != 0) return static_cast<CUresult>(cudaErrorInvalidValue);  // at least: the only way to compare that is here
  if (const cudaError_t code = answer.load(); code != cudaSuccess) return static_cast<CUresult>(code);
  ++waits;
  emulated::enqueue(stream, [=] {
    const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(at));
    while (static_cast<std::int64_t>(word.load(std::memory_order_acquire) - value) < 0 && emulated::status_of(stream) == cudaSuccess)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return static_cast<CUresult>(emulated::status_of(stream));
}

}  // namespace

namespace emulated {

void* wait_entry() { return reinterpret_cast<void*>(&wait_value); }
void answer_waits(cudaError_t code) { answer.store(code); }
std::size_t waits_enqueued() { return waits.load(); }

}  // namespace emulated
