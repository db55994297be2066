// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>

#include <millrace/tensor/with_cuda/queue.h>

namespace millrace::cuda {

/// What a device has once for all its streams, besides memory: what libraries of products keep with it, made on first use and gone with it.
struct DeviceContext {
  bool library_products = true;    ///< whether there may be any
  bool tf32 = false;               ///< whether f32 is multiplied as tf32
  std::mutex mutex;                ///< of what follows
  std::shared_ptr<void> products;  ///< of kernels/cuda, which alone knows what it is
};

inline bool uses_tf32(const Queue& queue) { return queue.context != nullptr && queue.context->tf32; }

}  // namespace millrace::cuda
