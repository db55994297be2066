// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Reverses the first lengths[n] rows of each sequence; `time_axis` is 0 or 1, the batch is the other. IndexError for a
/// length outside.
void reverse_sequence(const Tensor& x, const Tensor& lengths, int time_axis, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
