// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/tensor/lod.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

struct Tokens {
  const Tensor& rows;
  const LoD& lod;
};
void edit_distance(const Tokens& hypotheses, const Tokens& references, bool normalised, const std::vector<std::int64_t>& ignored,
                   const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
