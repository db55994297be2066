// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Sums of each `count` bytes less a zero, one behind the other; x and out are row-major.
void sum_bytes(const Tensor& x, std::int64_t zero, std::int64_t count, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
