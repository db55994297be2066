// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/crf.h>
#include <millrace/tensor/lod.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

void crf_viterbi(const Tensor& emission, const Tensor& weights, const LoD& lod, const Tensor& tags, const Tensor& scores, ThreadTeam& team);
/// The score of `tags` (null: 0), less the log-partition if `normalised`; without tags the log-partition itself. IndexError opens with `op`.
void crf_likelihood(const char* op, const Tensor& emission, const Tensor& weights, const Tensor* tags, bool normalised, const LoD& lod,
                    const Tensor& out, ThreadTeam& team);
/// See crf_log_likelihood_gradient. `made` holds row-major tensors.
void crf_gradient(const char* op, const Tensor& emission, const Tensor& weights, const Tensor& tags, const Tensor& gradient, const LoD& lod,
                  const CrfGradient& made, ThreadTeam& team);

}  // namespace millrace::cpu
