// SPDX-License-Identifier: Apache-2.0
// Streams that write words and wait for them.
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace {

std::atomic<cudaError_t> answer{cudaSuccess}, write_answer{cudaSuccess};
std::atomic<std::size_t> waits{0};

/// A word that devices see, of 64 bits, on a stream that runs: neither a graph's body takes these nor memory that CUDA does not know.
bool takes(CUstream stream, CUdeviceptr at) {
  return emulated::captured_by(stream) == nullptr && emulated::is_of_cuda(reinterpret_cast<const void*>(at)) && at % 8 == 0;
}

CUresult write_value(CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned flags) {
  if (flags != 0 || !takes(stream, to)) return static_cast<CUresult>(cudaErrorInvalidValue);
  if (const cudaError_t code = write_answer.load(); code != cudaSuccess) return static_cast<CUresult>(code);
  emulated::enqueue(stream,
                    [to, value] { std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to)).store(value, std::memory_order_release); });
  return static_cast<CUresult>(emulated::status_of(stream));
}

CUresult wait_value(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags) {
  if (flags != 0 || !takes(stream, at))
    return static_cast<CUresult>(cudaErrorInvalidValue);  // at least: the only way to compare that is here
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

void* write_entry() { return reinterpret_cast<void*>(&write_value); }
void answer_writes(cudaError_t code) { write_answer.store(code); }
void* wait_entry() { return reinterpret_cast<void*>(&wait_value); }
void answer_waits(cudaError_t code) { answer.store(code); }
std::size_t waits_enqueued() { return waits.load(); }

}  // namespace emulated
