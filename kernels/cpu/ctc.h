// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/ctc.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

void ctc_greedy(const Tensor& scores, const LoD& lod, std::int64_t blank, const CtcLabels& to, ThreadTeam& team);
void ctc_beam_search(const Tensor& scores, const LoD& lod, const CtcBeam& options, const CtcLabels& to, ThreadTeam& team);

}  // namespace millrace::cpu
