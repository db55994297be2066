// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include <millrace/tensor/kernel_context.h>
#include <millrace/tensor/memory.h>
#include <millrace/tensor/with_cuda/check.h>
#include <millrace/tensor/with_cuda/fault.h>

namespace millrace::cuda {

class StreamState;
class Launched;
class Recording;
struct DeviceContext;

/// The properties of a stream that the launcher of a kernel needs.
struct Queue {
  cudaStream_t stream = nullptr;
  int device = 0;
  int multiprocessors = 1;
  std::uint64_t* fault = nullptr;  ///< as the device sees it
  StreamState* state = nullptr;
  Launched* launched = nullptr;                             ///< where kernels say what they are
  Recording* recording = nullptr;                           ///< a started kernel becomes part of this, and runs with it, maybe often
  const std::shared_ptr<MemoryResource>* memory = nullptr;  ///< for scratch, which may be given back as soon as its last use is enqueued
  DeviceContext* context = nullptr;                         ///< lives as long as the device
};

inline const Queue& queue_of(const KernelContext& context) { return *static_cast<const Queue*>(context.device_queue()); }

}  // namespace millrace::cuda
