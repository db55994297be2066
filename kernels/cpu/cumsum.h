// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Running sums of numbers along `axis`.
void cumsum(const Tensor& x, int axis, bool exclusive, bool reverse, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
