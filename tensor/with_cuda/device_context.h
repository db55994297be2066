// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>

namespace millrace::cuda {

/// What a device has once for all its streams, besides memory: what libraries of products keep with it, made on first use and gone with it.
struct DeviceContext {
  bool library_products = true;    ///< whether there may be any
  std::mutex mutex;                ///< of what follows
  std::shared_ptr<void> products;  ///< of kernels/cuda, which alone knows what it is
};

}  // namespace millrace::cuda
