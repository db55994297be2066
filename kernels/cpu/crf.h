// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/lod.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

void crf_viterbi(const Tensor& emission, const Tensor& weights, const LoD& lod, const Tensor& tags, const Tensor& scores, ThreadTeam& team);
/// The score of `tags` (null: 0), less the log-partition if `normalised`; without tags the log-partition itself. IndexError opens with `op`.
void crf_likelihood(const char* op, const Tensor& emission, const Tensor& weights, const Tensor* tags, bool normalised, const LoD& lod,
                    const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
