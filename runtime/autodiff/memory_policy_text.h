// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/runtime/autodiff/append_backward.h>

namespace millrace {

/// The policy that a person writes: "keep", "spill", "recompute" (runs that grow), "recompute(32)", "truncate(20)", which is "truncate(20, 20)", "truncate(20, 60)".
/// ArgumentError says what was expected, and what was found.
MemoryPolicy parse_memory_policy(const std::string& text);

/// The text of a policy: "recompute(0)" for runs that grow. The folder of `spill` is not part of it.
std::string to_string(const MemoryPolicy& policy);

}  // namespace millrace
