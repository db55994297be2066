// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/unary.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// out = f(x); dtypes and extents are checked.
void unary(Unary kind, const UnaryParams& params, const Tensor& x, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
