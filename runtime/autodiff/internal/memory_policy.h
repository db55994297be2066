// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Writes the policy of each loop to its op, so that copies of the loop have it too. ArgumentError for numbers that no policy takes, UnsupportedError for
/// a policy that is not built.
void set_policies(Program& program, const BackwardOptions& options);
/// What `set_policies` wrote; `keep` for loops that the backward made.
MemoryPolicy policy_of(const Op& loop);
/// Takes away what `set_policies` wrote.
void clear_policies(Program& program);

}  // namespace millrace::autodiff
