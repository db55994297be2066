// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/binary.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// out = f(a, b), all of the same extents; dtypes are checked. ArgumentError when an integer is divided by zero.
void binary(Binary kind, const Tensor& a, const Tensor& b, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
