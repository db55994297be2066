// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace::testing {

/// A kernel of one thread that takes `nanoseconds`: i64 [2] on the device, its begin and end by the device's clock. It comes behind `after`.
Tensor spin(std::int64_t nanoseconds, const Tensor* after, StreamRef stream);
/// The same, but where threads stand for a device they sleep meanwhile.
Tensor doze(std::int64_t nanoseconds, StreamRef stream);
/// f32 [2] on the device, made by a kernel that traps: the device is of no use to the process from then on.
Tensor trap(StreamRef stream);

}  // namespace millrace::testing
