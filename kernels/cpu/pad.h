// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// x in `out`, with `before` copies of `element` in front of it along each axis, and as many behind as are left. `out` is row-major; x may have any strides.
void surround(const Tensor& x, const std::vector<std::int64_t>& before, const Tensor& element, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
