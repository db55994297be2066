// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/ctc.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

void ctc_greedy(const Tensor& scores, const LoD& lod, const CtcGreedy& options, const CtcLabels& to, ThreadTeam& team);
void ctc_beam_search(const Tensor& scores, const LoD& lod, const CtcBeam& options, const CtcLabels& to, ThreadTeam& team);
void ctc_loss(const Tensor& scores, const LoD& lod, const Tensor& labels, const LoD& label_lod, const CtcLoss& options, const Tensor& to,
              ThreadTeam& team);
/// `to`: row-major.
void ctc_loss_gradient(const Tensor& scores, const LoD& lod, const Tensor& labels, const LoD& label_lod, const Tensor& gradient,
                       const CtcLoss& options, const Tensor& to, ThreadTeam& team);

}  // namespace millrace::cpu
