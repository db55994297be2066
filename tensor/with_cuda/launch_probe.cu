// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/with_cuda/launch_probe.h>

namespace millrace::cuda {

#if defined(__CUDACC__)

namespace {

__global__ void nothing() {}

struct ProbeEvent {
  cudaEvent_t event = nullptr;
  explicit ProbeEvent(int device) { check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", device); }
  ~ProbeEvent() { static_cast<void>(cudaEventDestroy(event)); }
  ProbeEvent(const ProbeEvent&) = delete;
  ProbeEvent& operator=(const ProbeEvent&) = delete;
};

/// Nothing promises that event of every kind of launch: any refusal that leaves the device usable means that there is none.
bool takes_event(LaunchKind kind, const Queue& queue) {
  const ProbeEvent begun(queue.device);
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  attributes[count].id = cudaLaunchAttributeLaunchCompletionEvent;
  attributes[count++].val.launchCompletionEvent.event = begun.event;
  if (kind == LaunchKind::cluster || kind == LaunchKind::cooperative_clusters) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = 2;
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (kind == LaunchKind::cooperative || kind == LaunchKind::cooperative_clusters) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2);
  config.blockDim = dim3(32);
  config.stream = queue.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaError_t code = cudaLaunchKernelEx(&config, nothing);
  if (code == cudaSuccess) code = cudaEventSynchronize(begun.event);
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  check(cudaStreamSynchronize(queue.stream), "cudaStreamSynchronize", queue.device);  // a failure that lasts shows here
  return code == cudaSuccess;
}

}  // namespace

void probe_launches(DeviceContext& context, const Queue& queue) {
  for (std::size_t kind = 0; kind < context.completion_events.size(); ++kind)
    context.completion_events[kind] = takes_event(static_cast<LaunchKind>(kind), queue);
}

#else

void probe_launches(DeviceContext& context, const Queue&) {
  for (std::atomic<bool>& there : context.completion_events) there = true;
}

#endif

}  // namespace millrace::cuda
