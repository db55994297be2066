// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// For each axis of an output: which index of the input it shows, or −1 for none.
using IndexMaps = std::vector<std::vector<std::int64_t>>;

/// out[i, j, …] = x[maps[0][i], maps[1][j], …], or the one element of `otherwise` where an index is −1 (null when there
/// is none). `out` is contiguous.
void mapped_copy(const Tensor& x, const IndexMaps& maps, const Tensor* otherwise, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
