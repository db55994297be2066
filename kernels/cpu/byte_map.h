// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// map_bytes of kernels/byte_map.h; x and `out` are row-major.
void map_bytes(const Tensor& table, const Tensor& x, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
