// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cuda {

/// Whether this build has CUDA.
bool built() noexcept;

/// dst = src where at least one is on a CUDA device and `team` is that of a stream there; dtypes and extents agree.
void copy(const Tensor& src, const Tensor& dst, ThreadTeam& team);

/// The elements of a tensor on a CUDA device, which are there, as row-major ones in `dst` on the host. Blocks.
void copy_to_host(const Tensor& src, const Tensor& dst);

}  // namespace millrace::cuda
