// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/op_registry.h>

namespace millrace {

void OpRegistry::add(OpDef def) {
  if (def.name.empty() || !def.infer)
    throw ProgramError("op registry: expected an op with a name and an inference, found '" + def.name + "'");
  const std::string name = def.name;
  if (!ops_.emplace(name, std::move(def)).second) throw ProgramError("op registry: the name '" + name + "' is taken");
}

const OpDef* OpRegistry::find(const std::string& name) const noexcept {
  const auto found = ops_.find(name);
  return found == ops_.end() ? nullptr : &found->second;
}

const OpDef& OpRegistry::at(const std::string& name) const {
  const OpDef* found = find(name);
  if (found == nullptr) throw ProgramError("op registry: expected a registered op, found '" + name + "'");
  return *found;
}

std::vector<std::string> OpRegistry::names() const {
  std::vector<std::string> all;
  for (const auto& [name, def] : ops_) all.push_back(name);
  return all;
}

}  // namespace millrace
