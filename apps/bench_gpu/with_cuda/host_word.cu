// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/device_costs.h>

#include <atomic>

#include <millrace/tensor/cuda_device.h>
#include <bench_gpu/with_cuda/device_clock.cuh>
#include <millrace/tensor/with_cuda/each_index.cuh>

namespace millrace::bench {
namespace {

struct Nothing {
  MILLRACE_HD void operator()(std::int64_t) const {}
};

struct WriteAfter {
  std::int64_t nanoseconds, value;
  volatile std::int64_t* word;
  MILLRACE_HD void operator()(std::int64_t) const {
    const std::int64_t begin = device_clock();
    while (device_clock() - begin < nanoseconds) {
    }
    *word = value;
#if defined(__CUDA_ARCH__)
    __threadfence_system();
#endif
  }
};

}  // namespace

HostWord::HostWord() : word_(DType::i64, DDim{1}, pinned_memory()) { set(0); }

std::int64_t HostWord::get() const noexcept {
  return std::atomic_ref(*static_cast<std::int64_t*>(word_.raw_mutable())).load(std::memory_order_acquire);
}

void HostWord::set(std::int64_t value) noexcept {
  std::atomic_ref(*static_cast<std::int64_t*>(word_.raw_mutable())).store(value, std::memory_order_release);
}

void HostWord::written_after(std::int64_t nanoseconds, std::int64_t value, StreamRef stream) {
  stream.enqueue([=, word = word_](KernelContext& context) {
    cuda::each_index(cuda::queue_of(context), 1, WriteAfter{nanoseconds, value, static_cast<std::int64_t*>(word.raw_mutable())});
  });
}

void HostWord::nothing(StreamRef stream) {
  stream.enqueue([](KernelContext& context) { cuda::each_index(cuda::queue_of(context), 1, Nothing{}); });
}

}  // namespace millrace::bench
