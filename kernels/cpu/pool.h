// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/pool.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// pool of kernels/pool.h; x and out row-major.
void pool(const PoolDesc& desc, const Tensor& x, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
