// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// softmax, or its logarithm, along the last axis of views of the same extents.
void softmax(const Tensor& x, bool logarithm, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
