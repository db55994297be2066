// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Normalises the last `axes` axes of `x`; scale and bias (null: none) are contiguous, of those extents and the wide
/// dtype.
void layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axes, double epsilon, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
