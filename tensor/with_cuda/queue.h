// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include <millrace/tensor/memory.h>
#include <millrace/tensor/thread_team.h>
#include <millrace/tensor/with_cuda/check.h>
#include <millrace/tensor/with_cuda/fault.h>

namespace millrace::cuda {

class StreamState;
class Launched;
class Recording;
struct DeviceContext;

/// What a kernel's launcher needs to know of its stream.
struct Queue {
  cudaStream_t stream = nullptr;
  int device = 0;
  int multiprocessors = 1;
  std::uint64_t* fault = nullptr;  ///< as the device sees it
  StreamState* state = nullptr;
  Launched* launched = nullptr;                             ///< where kernels say what they are
  Recording* recording = nullptr;                           ///< what is started becomes part of this, and runs with it, maybe often
  const std::shared_ptr<MemoryResource>* memory = nullptr;  ///< for scratch, which may be given back as soon as its last use is enqueued
  DeviceContext* context = nullptr;                         ///< lives as long as the device
};

inline const Queue& queue_of(ThreadTeam& team) { return *static_cast<const Queue*>(team.device_queue()); }

}  // namespace millrace::cuda
