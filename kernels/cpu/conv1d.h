// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/conv.h>
#include <millrace/kernels/conv1d.h>
#include <millrace/kernels/cpu/packing.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::cpu {

/// How the weights of one group are packed: k runs over channels, then taps.
PackedLayout conv1d_layout(const Conv1dPlan& plan);

/// x [N, C, L] of any strides; packed: all groups one behind the other; bias [out] or null; out [N, out, out_length]
/// contiguous; operands of `steps` as cpu/conv_steps.h has them. All of the wide dtype of the plan. Rows and results before they are turned lie in the
/// workspace. OutOfMemoryError where it has no room.
void conv1d(const Conv1dPlan& plan, const Tensor& x, const Tensor& packed, const Tensor* bias, const ConvSteps& steps, const Tensor& out,
            const KernelContext& context);

}  // namespace millrace::cpu
