// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include <millrace/tensor/host_device.h>

namespace millrace::bench {

/// Nanoseconds by the clock that all multiprocessors share; it may tick in 1 µs. On the host: a steady clock.
MILLRACE_HD inline std::int64_t device_clock() {
#if defined(__CUDA_ARCH__)
  std::int64_t time = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
#else
  return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

}  // namespace millrace::bench
