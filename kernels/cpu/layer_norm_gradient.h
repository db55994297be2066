// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace {

/// Operands of kernels/layer_norm_gradient.h: contiguous, of one dtype; `scale` has the normalised extents.
struct NormGradientCall {
  Tensor x, scale, g;
  double epsilon = 0;
  Tensor dx, rows;
};

namespace cpu {

/// Rows of `n` elements.
void layer_norm_gradient(const NormGradientCall& call, std::int64_t n, ThreadTeam& team);

}  // namespace cpu
}  // namespace millrace
