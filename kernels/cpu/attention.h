// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/attention.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::cpu {

/// The call with batches and operands stretched to the scores, where none is empty; `out` is [B, H, S, E] with E side by side.
void attention(const Attention& call, const Tensor& out, const KernelContext& context);

}  // namespace millrace::cpu
