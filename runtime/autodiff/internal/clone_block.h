// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Appends copies of the ops of block `from` to block `to`, with vars of their own, and gives the copies. `vars` maps vars of `from` (at first its
/// parameters) to those of the copy, and is completed. Writes to arrays that lie outside become `tensor_array_written`, which does nothing;
/// the breaks of `from` are left out: the copy computes values of an iteration that was complete. Copies of active vars become active.
std::vector<Op> clone_ops(Program& program, int from, int to, std::map<VarId, VarId>& vars, std::set<VarId>& active);

/// A copy of a loop's body as a block below `parent`, with its writes and breaks.
int clone_body(Program& program, int body, int parent, std::set<VarId>& active);

/// The program without blocks that no op owns. Vars keep their ids; those of such blocks count as vars of block 0.
Program without_unowned_blocks(const Program& program);

/// Takes ops out of `block` that nothing needs: neither the block's results nor an op that stays.
void drop_dead_ops(Program& program, int block);

/// Vars that ops of the block and of blocks below it read, and results of those blocks.
std::set<VarId> vars_read(const Program& program, int block);

}  // namespace millrace::autodiff
