// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// out = x in the dtype of `out`; the rules stand in kernels/cast.h.
void cast(const Tensor& x, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
