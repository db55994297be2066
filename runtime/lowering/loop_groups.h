// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Loops of block 0, by their place among its ops, that may run side by side once what all of them work on is there: the layers of a stack,
/// of which each reads the arrays that those before it write, or loops that have nothing to do with one another, such as both directions of
/// a layer. Other inputs of a loop of the group come from none of the others, and from nothing that waits for more than the first one does.
using LoopGroup = std::vector<std::size_t>;

/// Groups of two and more; no loop is in two.
std::vector<LoopGroup> find_loop_groups(const Program& program);

/// By loop of `group`: the inputs of the program that it needs and the first one does not. Where one of them comes late, the first must not wait for
/// the loop: its values may be made of the writes of the first one.
std::vector<std::set<VarId>> inputs_beyond_first(const Program& program, const LoopGroup& group);

/// By loop of `group`: the ops of block 0, by their place, that must have run before it, and before no loop of the group in front of it. A loop of the
/// group is no such op, also where it writes an array that the other reads.
std::vector<std::set<std::size_t>> ops_before_each(const Program& program, const LoopGroup& group);

}  // namespace millrace
