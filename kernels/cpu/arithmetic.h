// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// arithmetic of inputs = {x, operands…}, all of them views with the extents of `out`, whose strides along the innermost axis with several elements are 0 or 1. `out` is
/// row-major.
void arithmetic(const std::vector<ArithmeticStep>& steps, const std::vector<Tensor>& inputs, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
