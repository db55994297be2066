// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// out = condition ? a : b, all of the same extents.
void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
