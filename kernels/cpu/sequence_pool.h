// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/sequence_pool.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// average, sum, sqrt and max of row-major `x` into row-major `out`; rows of `out` whose sequence is empty stay as they are.
void sequence_pool(SequencePool kind, const Tensor& x, const std::vector<std::int64_t>& offsets, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
