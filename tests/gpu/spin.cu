// SPDX-License-Identifier: Apache-2.0
#include <gpu/spin.h>

#include <chrono>

#include <millrace/tensor/launch.h>
#include <millrace/tensor/with_cuda/each_index.cuh>

namespace millrace::testing {
namespace {

MILLRACE_HD std::int64_t now() {
#if defined(__CUDA_ARCH__)
  std::int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
#else
  return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

struct Spin {
  std::int64_t nanoseconds;
  std::int64_t* stamps;
  MILLRACE_HD void operator()(std::int64_t) const {
    const std::int64_t begin = now();
    std::int64_t end = begin;
    while (end - begin < nanoseconds) end = now();
    stamps[0] = begin;
    stamps[1] = end;
  }
};

}  // namespace

Tensor spin(std::int64_t nanoseconds, const Tensor* after, StreamRef stream) {
  const Tensor stamps(DType::i64, DDim{2}, stream.memory());
  launch(
      TensorRefs<1>{after}, TensorRefs<1>{&stamps},
      [nanoseconds, stamps](ThreadTeam& team) {
        cuda::each_index(cuda::queue_of(team), 1, Spin{nanoseconds, static_cast<std::int64_t*>(stamps.raw_mutable())});
      },
      stream);
  return stamps;
}

}  // namespace millrace::testing
