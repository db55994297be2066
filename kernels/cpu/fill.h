// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Every element of `out` becomes the one element of `value`, which has the same dtype.
void fill(const Tensor& value, const Tensor& out, ThreadTeam& team);

/// out[i] = start + i·step for a contiguous vector: f64 arithmetic for floats, wrapping integers else.
void arange(double start, double step, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
