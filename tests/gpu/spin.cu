// SPDX-License-Identifier: Apache-2.0
#include <gpu/spin.h>

#include <chrono>
#include <thread>

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
  bool dozes = false;
  MILLRACE_HD void operator()(std::int64_t) const {
    const std::int64_t begin = now();
#if !defined(__CUDACC__)
    if (dozes) std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
#endif
    std::int64_t end = begin;
    while (end - begin < nanoseconds) end = now();
    stamps[0] = begin;
    stamps[1] = end;
  }
};

struct Trap {
  float* never;
  MILLRACE_HD void operator()(std::int64_t i) const {
#if defined(__CUDA_ARCH__)
    asm volatile("trap;");
#elif !defined(__CUDACC__)
    emulated::trap();
#endif
    never[i] = 1;
  }
};

Tensor stamped(std::int64_t nanoseconds, const Tensor* after, bool dozes, StreamRef stream) {
  const Tensor stamps(DType::i64, DDim{2}, stream.memory());
  launch(
      TensorRefs<1>{after}, TensorRefs<1>{&stamps},
      [nanoseconds, stamps, dozes](ThreadTeam& team) {
        cuda::each_index(cuda::queue_of(team), 1, Spin{nanoseconds, static_cast<std::int64_t*>(stamps.raw_mutable()), dozes});
      },
      stream);
  return stamps;
}

}  // namespace

Tensor spin(std::int64_t nanoseconds, const Tensor* after, StreamRef stream) { return stamped(nanoseconds, after, false, stream); }
Tensor doze(std::int64_t nanoseconds, StreamRef stream) { return stamped(nanoseconds, nullptr, true, stream); }

Tensor trap(StreamRef stream) {
  const Tensor made(DType::f32, DDim{2}, stream.memory());
  launch(
      TensorRefs<0>{}, TensorRefs<1>{&made},
      [made](ThreadTeam& team) { cuda::each_index(cuda::queue_of(team), 2, Trap{static_cast<float*>(made.raw_mutable())}); }, stream);
  return made;
}

}  // namespace millrace::testing
