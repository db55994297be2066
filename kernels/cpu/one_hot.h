// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// `values` holds off and on; `out` is contiguous and has the new axis at `axis`.
void one_hot(const Tensor& index, int axis, const Tensor& values, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
