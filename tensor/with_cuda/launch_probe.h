// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/with_cuda/device_context.h>

namespace millrace::cuda {

/// Launches an empty kernel of each kind with a completion event, and writes down which of them the device takes
/// (DeviceContext::completion_events). Returns when they are through. CudaError after a failure that lasts.
void probe_launches(DeviceContext& context, const Queue& queue);

}  // namespace millrace::cuda
