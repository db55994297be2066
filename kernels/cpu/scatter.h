// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/scatter.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Row-major x, updates and out.
void gather_nd(const Tensor& x, const Tensor& index, int batch_axes, const Tensor& out, ThreadTeam& team);
/// `out` holds x already.
void scatter_nd(const Tensor& updates, const Tensor& index, ScatterReduction reduction, const Tensor& out);
void scatter_elements(const Tensor& updates, const Tensor& index, int axis, ScatterReduction reduction, const Tensor& out);

}  // namespace millrace::cpu
