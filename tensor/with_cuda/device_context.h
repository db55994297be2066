// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include <millrace/tensor/with_cuda/queue.h>

namespace millrace::cuda {

/// The launch of a kernel, as far as launches differ in what may be asked of them.
enum class LaunchKind : std::uint8_t { plain, cluster, cooperative, cooperative_clusters };

/// State of a device that all its streams share, besides memory: findings about the device, and the state of product libraries, made
/// on first use and gone with it.
struct DeviceContext {
  /// By LaunchKind: whether a launch may record an event once its blocks run. Probed when the device is made.
  std::array<std::atomic<bool>, 4> completion_events{};
  std::atomic<const char* (*)(FaultSource)> fault_name{nullptr};  ///< set by kernels that may find faults
  bool library_products = true;                                   ///< whether there may be any
  bool tf32 = false;                                              ///< whether f32 is multiplied as tf32
  std::mutex mutex;                                               ///< of what follows
  std::shared_ptr<void> products;                                 ///< of kernels/cuda, which alone knows what it is
};

inline bool uses_tf32(const Queue& queue) { return queue.context != nullptr && queue.context->tf32; }

}  // namespace millrace::cuda
