// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/winograd.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::cpu {

/// conv of kernels/winograd.h: x and bias row-major, bias or null; operands of `steps` as cpu/conv_steps.h has them; out row-major [N, M, rows, places].
void conv(const ConvDesc& desc, const Tensor& x, const WinogradWeights& weights, const Tensor* bias, const ConvSteps& steps,
          const Tensor& out, const KernelContext& context);

}  // namespace millrace::cpu
