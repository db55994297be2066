// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Vars of all blocks that depend on `sources` through ops that let gradients pass, arrays and lists among them. `stopped` vars and what depends
/// on the sources through them alone are not among the result.
std::set<VarId> active_vars(const Program& program, const std::vector<VarId>& sources, const std::vector<VarId>& stopped);

/// Calls `f` with each block that the op owns.
void for_each_sub_block(const Op& op, const std::function<void(int)>& f);

/// The array that the op writes, or wrote when the values were computed first (`tensor_array_written`); no_var for other ops.
VarId written_array(const Program& program, const Op& op);
/// The value that it writes there.
VarId written_value(const Program& program, const Op& op);

/// Whether gradients pass the op at all.
bool passes_gradient(const Program& program, const Op& op);

}  // namespace millrace::autodiff
