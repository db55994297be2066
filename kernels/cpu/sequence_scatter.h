// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// `x`, `updates` and `out` are row-major. IndexError for an id outside.
void sequence_scatter(const Tensor& x, const Tensor& ids, const Tensor& updates, const std::vector<std::int64_t>& offsets,
                      const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
