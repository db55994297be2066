// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/causal_filter.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::cpu {

/// causal_filter of kernels/causal_filter.h; all tensors are row-major, and places or channels lie along the last axis. `bias` may be empty.
void causal_filter(const FilterDesc& desc, const Tensor& x, const Tensor& past, const Tensor& weights, const Tensor& bias,
                   const Tensor& out, const Tensor& last, const KernelContext& context);

}  // namespace millrace::cpu
