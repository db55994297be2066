// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Appends copies of the ops of block `from` to block `to`, with vars of their own, and gives the copies. `vars` maps vars of `from` (at first its
/// parameters) to those of the copy, and is completed. Writes to arrays that lie outside are left out, and so are the breaks of `from`: the
/// copy computes values of an iteration that was complete. Copies of active vars become active.
std::vector<Op> clone_ops(Program& program, int from, int to, std::map<VarId, VarId>& vars, std::set<VarId>& active);

/// Takes ops out of `block` that nothing needs: neither the block's results nor an op that stays.
void drop_dead_ops(Program& program, int block);

/// Vars that ops of the block and of blocks below it read, and results of those blocks.
std::set<VarId> vars_read(const Program& program, int block);

}  // namespace millrace::autodiff
