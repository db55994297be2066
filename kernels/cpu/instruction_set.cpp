// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/instruction_set.h>

#include <millrace/kernels/cpu/targets.h>
#include <millrace/tensor/error.h>

#include <hwy/highway.h>

namespace millrace::cpu {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

void use_instruction_set(const std::string& name) {
  if (name.empty()) return hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  std::string known;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(target)) return hwy::GetChosenTarget().Update(target);
    known += std::string(known.empty() ? "" : " ") + hwy::TargetName(target);
  }
  throw ArgumentError("instruction set: expected one of " + known + ", found '" + name + "'");
}

bool fuses(const std::string& name) { return name != "SSE4" && name != "EMU128" && name != "SCALAR"; }

}  // namespace millrace::cpu
