// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/sample.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

void sample_tokens(const Tensor& scores, const Tensor& keys, const Tensor& step, const SampleOptions& options, const Sampled& to,
                   ThreadTeam& team);

}  // namespace millrace::cpu
