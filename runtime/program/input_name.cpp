// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/internal/input_name.h>

#include <algorithm>

#include <millrace/runtime/program/op_def.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::internal {

std::string input_name(const Program& program, const Op& op, std::size_t input) {
  const OpDef* def = program.registry().find(op.type);
  if (def == nullptr || def->inputs.empty()) return "input " + std::to_string(input);
  const std::size_t last = def->inputs.size() - 1;
  std::string name = def->inputs[std::min(input, last)];
  if (name.ends_with("...")) {
    name.resize(name.size() - 3);
    return "input " + name + "[" + std::to_string(input - last) + "]";
  }
  if (name.ends_with("?")) name.pop_back();
  return input > last ? "input " + std::to_string(input) : "input " + name;
}

}  // namespace millrace::internal
