// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/tensor/with_cuda/kernel_list.h>
#include <millrace/kernels/cuda/recurrent/device.cuh>

/// How a grid of the kernels that meet (recurrent/device.cuh) is launched.
namespace millrace::cuda {

/// A grid whose blocks are all there at once, one on a multiprocessor.
struct GridShape {
  int blocks = 1;
  int warps = 1;       ///< of a block, 8 at most
  int cluster = 1;     ///< blocks
  bool meets = false;  ///< blocks of different clusters meet: a cooperative launch
  std::int64_t shared_bytes = 0;
  bool publishes =
      false;  ///< more warps in each block, the first of which publishes (recurrent/group.cuh): beside 8 only where the kernel says so
  int publishing = 1;           ///< how many
  cudaEvent_t begun = nullptr;  ///< recorded when all its blocks run

  LaunchKind kind() const noexcept {
    if (meets) return cluster > 1 ? LaunchKind::cooperative_clusters : LaunchKind::cooperative;
    return cluster > 1 ? LaunchKind::cluster : LaunchKind::plain;
  }
};

}  // namespace millrace::cuda

#if defined(__CUDACC__)

namespace millrace::cuda {

/// Threads of a block, which share its registers: more where warps publish beside eight that compute.
template <class F>
constexpr int most_threads() {
  if constexpr (requires { F::publishing; }) return (8 + F::publishing) * warp_lanes;
  return 8 * warp_lanes;
}

template <class F>
__global__ void __launch_bounds__(most_threads<F>(), 1) grid_kernel(const __grid_constant__ F kernel) {
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

/// Launches `entry`, a kernel's function or a cudaKernel_t, whose limit of shared memory is raised.
inline void launch_grid(const Queue& queue, const GridShape& shape, const void* entry, void** arguments) {
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
  config.blockDim = dim3(static_cast<unsigned>((shape.warps + (shape.publishes ? shape.publishing : 0)) * warp_lanes));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = queue.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaError_t code = cudaLaunchKernelExC(&config, entry, arguments);
  if (asks && code != cudaSuccess && !is_sticky(code)) {
    static_cast<void>(cudaGetLastError());
    config.numAttrs = count - 1;
    code = cudaLaunchKernelExC(&config, entry, arguments);
    if (code == cudaSuccess && knows != nullptr) knows->store(false, std::memory_order_relaxed);  // the event was what was refused
    asks = false;
  }
  if (code == cudaSuccess && shape.begun != nullptr && !asks) code = cudaEventRecord(shape.begun, queue.stream);
  check(code, "cudaLaunchKernelExC", queue.device);
}

/// kernel(warp) in each warp of the grid: a functor with a `MILLRACE_DEVICE void operator()(Warp&) const`.
template <class F>
void run_grid(const Queue& queue, const GridShape& shape, F kernel) {
  static_cast<void>(&grid_listed<F>);  // else nobody makes it
  if (shape.shared_bytes > (48 << 10)) raise_shared_limit<F>(queue.device);
  void* arguments[] = {&kernel};
  launch_grid(queue, shape, reinterpret_cast<const void*>(&grid_kernel<F>), arguments);
}

/// Clusters of `blocks` blocks with so much shared memory that are there at once; 0: none can be.
inline int most_clusters(const void* entry, int blocks, int warps, std::int64_t shared_bytes, int device) {
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
template <class F>
int most_clusters(int blocks, int warps, std::int64_t shared_bytes, int device) {
  raise_shared_limit<F>(device);
  return most_clusters(reinterpret_cast<const void*>(&grid_kernel<F>), blocks, warps, shared_bytes, device);
}

}  // namespace millrace::cuda

#else
#include <emulated_warp.h>
#endif
