// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/conv.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::cpu {

/// Whether `depthwise` computes this convolution: one input channel in each group, one or two axes, and at most k_block taps.
bool is_depthwise(const ConvDesc& desc, const Tensor& weights);
/// conv of kernels/conv.h, with the bits of cpu/conv.h: x of any strides, weights and bias row-major; operands of `steps` as cpu/conv_steps.h has them; out row-major. Planes between their
/// padding lie in the workspace. OutOfMemoryError where it has no room.
void depthwise(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, const ConvSteps& steps, const Tensor& out,
               const KernelContext& context);

}  // namespace millrace::cpu
