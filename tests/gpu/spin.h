// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace::testing {

/// A kernel of one thread that takes `nanoseconds`: i64 [2] on the device, its begin and end by the device's clock. It comes behind `after`.
Tensor spin(std::int64_t nanoseconds, const Tensor* after, StreamRef stream);
/// A kernel as `spin` starts, whose thread sleeps where threads stand for a device.
Tensor doze(std::int64_t nanoseconds, StreamRef stream);
/// f32 [2] on the device, made by a kernel that traps: the device is of no use to the process from then on.
Tensor trap(StreamRef stream);

/// Kernels of one thread that go through steps and raise a watermark behind each of them.
struct SteppedWork {
  std::int64_t steps = 8, nanoseconds = 0;
  std::int64_t a_launch = 8;  ///< steps
  std::int64_t traps_at = -1;
  std::int64_t raises = 1000;  ///< the word, this often at most
};
/// i64 [steps, 2]: the begin and end of each step by the device's clock. Where threads stand for a device they sleep meanwhile.
Tensor stepped(const SteppedWork& work, const std::shared_ptr<Watermark>& watermark, StreamRef stream);

}  // namespace millrace::testing
