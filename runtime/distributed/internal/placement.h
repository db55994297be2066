// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <millrace/runtime/distributed/partition.h>
#include <millrace/runtime/program/program.h>

namespace millrace::detail {

/// Vars of block 0 that each op of block 0 reads, itself or in its blocks; literals and weights are not among them.
std::vector<std::vector<VarId>> uses_of_ops(const Program& program);

/// The rank of each op of block 0 (−1 for `constant`, which goes where it is read), and what is to be said about the loops.
struct Placement {
  std::vector<int> rank_of_op;
  std::vector<Partition::Loop> loops;
};
Placement place_ops(const Program& program, int ranks);

}  // namespace millrace::detail
