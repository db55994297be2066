// SPDX-License-Identifier: Apache-2.0
#include <gpu/spin.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include <millrace/tensor/launch.h>
#include <millrace/tensor/with_cuda/watermark.h>
#include <millrace/kernels/cuda/with_cuda/warp.cuh>
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
  MILLRACE_HD static void end() {
#if defined(__CUDA_ARCH__)
    asm volatile("trap;");
#elif !defined(__CUDACC__)
    emulated::trap();
#endif
  }
  MILLRACE_HD void operator()(std::int64_t i) const {
    end();
    never[i] = 1;
  }
};

struct Steps {
  std::int64_t first, last, nanoseconds, traps_at, raises;
  std::int64_t* stamps;
  std::uint64_t* word;
  std::uint64_t base;
  MILLRACE_DEVICE void operator()(cuda::Warp& warp) const {
    warp.each_lane([&](int lane) {
      for (std::int64_t t = first; t < last && lane == 0; ++t) {
        if (t == traps_at) return Trap::end();
        Spin{nanoseconds, stamps + 2 * t, true}(0);
        if (t < raises) cuda::store_release_system(word, base + static_cast<std::uint64_t>(t + 1));
      }
    });
  }
};

Tensor stamped(std::int64_t nanoseconds, const Tensor* after, bool dozes, StreamRef stream) {
  const Tensor stamps(DType::i64, DDim{2}, stream.memory());
  launch(
      TensorRefs<1>{after}, TensorRefs<1>{&stamps},
      [nanoseconds, stamps, dozes](KernelContext& context) {
        cuda::each_index(cuda::queue_of(context), 1, Spin{nanoseconds, static_cast<std::int64_t*>(stamps.raw_mutable()), dozes});
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
      [made](KernelContext& context) { cuda::each_index(cuda::queue_of(context), 2, Trap{static_cast<float*>(made.raw_mutable())}); },
      stream);
  return made;
}

Tensor stepped(const SteppedWork& work, const std::shared_ptr<Watermark>& watermark, StreamRef stream) {
  const Tensor stamps(DType::i64, DDim{work.steps, 2}, stream.memory());
  for (std::int64_t first = 0; first < work.steps; first += work.a_launch) {
    const std::int64_t last = std::min(work.steps, first + work.a_launch);
    launch(
        TensorRefs<0>{}, TensorRefs<1>{&stamps},
        [=](KernelContext& context) {
          auto& mark = static_cast<cuda::CudaWatermark&>(*watermark);
          cuda::GridShape shape;
          shape.begun = mark.launching();
          cuda::run_grid(cuda::queue_of(context), shape,
                         Steps{first, last, work.nanoseconds, work.traps_at, work.raises, static_cast<std::int64_t*>(stamps.raw_mutable()),
                               mark.word(), mark.base()});
          mark.launched(static_cast<std::uint64_t>(last));
        },
        stream);
  }
  return stamps;
}

}  // namespace millrace::testing
