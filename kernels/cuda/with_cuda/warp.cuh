// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/tensor/with_cuda/kernel_list.h>

/// What a kernel of several blocks that meet is written against: a warp of a block, its lanes, shared memory, and three barriers. On a device
/// this is CUDA; where a host compiler reads it, tests/support/emulated_cuda/emulated_warp.h has the same names, with a thread of the host for
/// each warp, whose lanes go one after the other through each `each_lane`.

#if defined(__CUDACC__)
#define MILLRACE_DEVICE __device__ __forceinline__
#define MILLRACE_UNROLLED _Pragma("unroll")
#define MILLRACE_UNROLLED_BY_4 _Pragma("unroll 4")
#else
#define MILLRACE_DEVICE inline
#define MILLRACE_UNROLLED
#define MILLRACE_UNROLLED_BY_4
#endif

namespace millrace::cuda {

inline constexpr int warp_lanes = 32;

/// What a lane loads at once.
struct alignas(8) Words2 {
  std::uint32_t at[2];
};
struct alignas(16) Words4 {
  std::uint32_t at[4];
};

/// A grid whose blocks are all there at once, one on a multiprocessor.
struct GridShape {
  int blocks = 1;
  int warps = 1;       ///< of a block, 8 at most
  int cluster = 1;     ///< blocks
  bool meets = false;  ///< blocks of different clusters meet: a cooperative launch
  std::int64_t shared_bytes = 0;
  cudaEvent_t begun = nullptr;  ///< recorded when all its blocks run

  LaunchKind kind() const noexcept {
    if (meets) return cluster > 1 ? LaunchKind::cooperative_clusters : LaunchKind::cooperative;
    return cluster > 1 ? LaunchKind::cluster : LaunchKind::plain;
  }
};

}  // namespace millrace::cuda

#if defined(__CUDACC__)

namespace millrace::cuda {

/// A value of each lane of a warp; a lane sees its own.
template <class T>
struct PerLane {
  T own;
  MILLRACE_DEVICE T& operator[](int) { return own; }
  MILLRACE_DEVICE const T& operator[](int) const { return own; }
};

class Warp {
 public:
  MILLRACE_DEVICE int block() const { return static_cast<int>(blockIdx.x); }
  MILLRACE_DEVICE int warp() const { return static_cast<int>(threadIdx.x) / warp_lanes; }
  MILLRACE_DEVICE int warps() const { return static_cast<int>(blockDim.x) / warp_lanes; }
  MILLRACE_DEVICE std::byte* shared() const {
    extern __shared__ Words4 shared_words[];
    return reinterpret_cast<std::byte*>(shared_words);
  }
  /// f(lane) in each lane.
  template <class F>
  MILLRACE_DEVICE void each_lane(F&& f) const {
    f(static_cast<int>(threadIdx.x) % warp_lanes);
  }

  /// All warps of the block meet; what each wrote before, all see.
  MILLRACE_DEVICE void sync() const { __syncthreads(); }
  /// The same for all blocks of the cluster, in two halves.
  MILLRACE_DEVICE void cluster_arrive() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  }
  MILLRACE_DEVICE void cluster_wait() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
  /// Between the looks of who waits for other blocks.
  MILLRACE_DEVICE void relax() const {}
};

// Words that blocks share. What a thread wrote before a release, and whoever met it in its block before, is seen behind the acquire.
MILLRACE_DEVICE void add_release(std::uint32_t* word, std::uint32_t added) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(added) : "memory");
}
MILLRACE_DEVICE std::uint32_t add_acquire_release(std::uint32_t* word, std::uint32_t added) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(added) : "memory");
  return before;
}
MILLRACE_DEVICE std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
/// For whoever waits for the word outside the kernel: the device's front end, or another device.
MILLRACE_DEVICE void raise_release(std::uint64_t* word, std::uint64_t value) {
  asm volatile("red.release.sys.global.max.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
/// Past the first cache, which does not see what other multiprocessors write.
MILLRACE_DEVICE Words4 load_shared_by_blocks(const std::byte* from) {
  Words4 made;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(made.at[0]), "=r"(made.at[1]), "=r"(made.at[2]), "=r"(made.at[3])
               : "l"(from)
               : "memory");
  return made;
}

template <class F>
__global__ void __launch_bounds__(256, 1) grid_kernel(const __grid_constant__ F kernel) {
  Warp warp;
  kernel(warp);
}

template <class F>
inline const bool grid_listed = list_kernel(reinterpret_cast<const void*>(&grid_kernel<F>));

/// Shared memory that a block of `kernel` may ask for when it is launched.
template <class F>
std::int64_t most_shared_bytes(int device) {
  int most = 0;
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute", device);
  cudaFuncAttributes own = {};
  check(cudaFuncGetAttributes(&own, reinterpret_cast<const void*>(&grid_kernel<F>)), "cudaFuncGetAttributes", device);
  return most - static_cast<std::int64_t>(own.sharedSizeBytes);
}

/// A kernel's limit is 48 KiB until it is raised, to the most at once: were it what one launch needs, a thread that launches the same kernel with
/// less would lower it in between.
template <class F>
void raise_shared_limit(int device) {
  static std::atomic<std::uint64_t> raised{0};
  const std::uint64_t own = std::uint64_t{1} << device % 64;
  if (device < 64 && (raised.load(std::memory_order_relaxed) & own) != 0) return;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(&grid_kernel<F>), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(most_shared_bytes<F>(device))),
        "cudaFuncSetAttribute", device);
  raised.fetch_or(own, std::memory_order_relaxed);
}

/// kernel(warp) in each warp of the grid: a functor with a `MILLRACE_DEVICE void operator()(Warp&) const`.
template <class F>
void run_grid(const Queue& queue, const GridShape& shape, const F& kernel) {
  const auto* const entry = reinterpret_cast<const void*>(&grid_kernel<F>);
  static_cast<void>(&grid_listed<F>);  // else nobody makes it
  if (shape.shared_bytes > (48 << 10)) raise_shared_limit<F>(queue.device);
  if (shape.cluster > 8)
    check(cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute", queue.device);
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (shape.meets) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  // Where the device records no such event, one behind the kernel says the same, later.
  std::atomic<bool>* const knows =
      queue.context == nullptr ? nullptr : &queue.context->completion_events[static_cast<std::size_t>(shape.kind())];
  bool asks = shape.begun != nullptr && (knows == nullptr || knows->load(std::memory_order_relaxed));
  if (asks) {
    attributes[count].id = cudaLaunchAttributeLaunchCompletionEvent;
    attributes[count++].val.launchCompletionEvent.event = shape.begun;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.warps * warp_lanes));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = queue.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaError_t code = cudaLaunchKernelEx(&config, grid_kernel<F>, kernel);
  if (asks && code != cudaSuccess && !is_sticky(code)) {
    static_cast<void>(cudaGetLastError());
    config.numAttrs = count - 1;
    code = cudaLaunchKernelEx(&config, grid_kernel<F>, kernel);
    if (code == cudaSuccess && knows != nullptr) knows->store(false, std::memory_order_relaxed);  // the event was what was refused
    asks = false;
  }
  if (code == cudaSuccess && shape.begun != nullptr && !asks) code = cudaEventRecord(shape.begun, queue.stream);
  check(code, "cudaLaunchKernelEx", queue.device);
}

/// Clusters of `blocks` blocks with so much shared memory that are there at once; 0: none can be.
template <class F>
int most_clusters(int blocks, int warps, std::int64_t shared_bytes, int device) {
  const auto* const entry = reinterpret_cast<const void*>(&grid_kernel<F>);
  raise_shared_limit<F>(device);
  check(cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute", device);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(warps * warp_lanes));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int found = 0;
  if (cudaOccupancyMaxActiveClusters(&found, entry, &config) == cudaSuccess) return found;
  static_cast<void>(cudaGetLastError());  // a device without clusters
  return 0;
}

}  // namespace millrace::cuda

#else
#include <emulated_warp.h>
#endif
