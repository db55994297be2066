// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// out = x of the same dtype and extents, whatever the strides.
void copy(const Tensor& x, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
