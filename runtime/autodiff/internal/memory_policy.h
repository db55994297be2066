// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Writes the policy of each loop to its op, so that copies of the loop have it too. ArgumentError for numbers that no policy takes.
void set_policies(Program& program, const BackwardOptions& options);
/// The policy that `set_policies` wrote; `keep` for loops that the backward made.
MemoryPolicy policy_of(const Op& loop);
/// Gives `to` the policy of another loop.
void copy_policy(const Op& from, Op& to);
/// Attributes of an op that writes kept values: `kept`, the text of the policy, and under spill `spill`, the folder.
Attributes kept_attributes(const MemoryPolicy& policy, Attributes attributes);
/// Takes away what `set_policies` wrote.
void clear_policies(Program& program);

}  // namespace millrace::autodiff
