// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace millrace::cpu {

/// Names of the instruction sets that this build has kernels for and this machine runs, best first: "AVX3", "AVX2",
/// "SSE4", …
std::vector<std::string> instruction_sets();

/// For tests: kernels and plans made from now on use that set, or the best one for an empty name. ArgumentError lists
/// those that there are.
void use_instruction_set(const std::string& name);

/// Whether the set has a fused multiply-add; without one, a product is rounded before it is added (gemm.h).
bool fuses(const std::string& name);

}  // namespace millrace::cpu
