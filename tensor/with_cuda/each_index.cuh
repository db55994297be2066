// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <millrace/tensor/host_device.h>
#include <millrace/tensor/with_cuda/kernel_list.h>
#include <millrace/tensor/with_cuda/launched.h>
#include <millrace/tensor/with_cuda/queue.h>

namespace millrace::cuda {

#if defined(__CUDACC__)
template <class F>
__global__ void each_index_kernel(std::int64_t count, const __grid_constant__ F f) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x) f(i);
}

template <class F>
inline const bool each_index_listed = list_kernel(reinterpret_cast<const void*>(&each_index_kernel<F>));
#endif

/// f(i) for each i of [0, count) on the device, in no order. `f` is copied there: a functor with a `MILLRACE_HD void operator()(int64) const`.
/// Where a host compiler reads this, with the runtime that tests/support/emulated_cuda has, it is a loop.
template <class F>
void each_index(const Queue& queue, std::int64_t count, const F& f) {
  if (count <= 0) return;
  if (queue.launched != nullptr) queue.launched->add(kernel_of<F>());
#if defined(__CUDACC__)
  // A block's worth of few indices goes to many multiprocessors: an index may be a whole row.
  constexpr std::int64_t most_blocks = 132 * 32;
  const unsigned threads = count >= 132 * 256 ? 256 : count >= 132 * 64 ? 128 : 32;
  static_cast<void>(&each_index_listed<F>);  // else nobody makes it
  const auto blocks = static_cast<unsigned>(std::min(most_blocks, (count + threads - 1) / threads));
  each_index_kernel<<<blocks, threads, 0, queue.stream>>>(count, f);
  check(cudaGetLastError(), "a kernel's launch", queue.device);
#else
  check(cudaGetLastError(), "a kernel's launch", queue.device);  // before: errors of this one are found behind it, however soon it runs
  emulated::enqueue(queue.stream, [count, f] {
    constexpr std::int64_t together = 32;
    emulated::in_any_order((count + together - 1) / together, [&](std::int64_t warp) {
      for (std::int64_t i = std::min(count, (warp + 1) * together); i-- > warp * together;) f(i);
    });
  });
#endif
}

}  // namespace millrace::cuda
