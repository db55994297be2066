// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/kernel_context.h>
#include <millrace/tensor/tensor.h>

namespace millrace::cuda {

/// Whether this build has CUDA.
bool built() noexcept;

/// dst = src where at least one is on a CUDA device and `context` is that of a stream there; dtypes and extents agree.
void copy(const Tensor& src, const Tensor& dst, KernelContext& context);

/// The elements of a tensor on a CUDA device, which are there, as row-major ones in `dst` on the host. Blocks.
void copy_to_host(const Tensor& src, const Tensor& dst);

}  // namespace millrace::cuda
