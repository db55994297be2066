// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// All tensors are row-major.
void row_conv(const Tensor& x, const Tensor& w, const std::vector<std::int64_t>& offsets, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
