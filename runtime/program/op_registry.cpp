// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/op_registry.h>

#include <set>
#include <utility>

#include <millrace/runtime/files/internal/printable.h>

namespace millrace {
namespace {

void check_slot(const OpDef& def, std::size_t place, std::set<std::string>& seen) {
  std::string slot = def.inputs[place];
  const bool variadic = slot.ends_with("...");
  if (variadic) slot.resize(slot.size() - 3);
  if (!variadic && slot.ends_with("?")) slot.pop_back();
  if (!Program::is_name(slot) || !seen.insert(slot).second || (variadic && place + 1 != def.inputs.size()))
    throw ProgramError("op registry: op '" + def.name + "': expected inputs of different names, only the last of them with '...', found " +
                       internal::printable(def.inputs[place]));
}

}  // namespace

void OpRegistry::add(OpDef def) {
  if (def.name.empty() || !def.infer)
    throw ProgramError("op registry: expected an op with a name and an inference, found " + internal::printable(def.name));
  // Names stand in the text form.
  if (!Program::is_name(def.name))
    throw ProgramError("op registry: expected a name of letters, digits and _ . /, found " + internal::printable(def.name));
  std::set<std::string> slots;
  for (std::size_t i = 0; i < def.inputs.size(); ++i) check_slot(def, i, slots);
  const std::string name = def.name;
  if (!ops_.emplace(name, std::move(def)).second) throw ProgramError("op registry: the name '" + name + "' is taken");
}

void OpRegistry::set_traits(const std::string& name, OpTraits traits) {
  at(name);
  ops_.find(name)->second.traits = std::move(traits);
}

OpDef& OpRegistry::without_rule(const std::string& name) {
  const OpDef& def = at(name);
  if (def.gradient || def.cuts_gradient) throw ProgramError("op registry: the gradient of op '" + name + "' is defined already");
  return ops_.find(name)->second;
}

void OpRegistry::set_gradient(const std::string& name, GradientRule rule) {
  if (!rule) throw ProgramError("op registry: expected a gradient rule for op '" + name + "', found none");
  without_rule(name).gradient = std::move(rule);
}

void OpRegistry::cut_gradients(const std::vector<std::string>& names) {
  for (const std::string& name : names) without_rule(name).cuts_gradient = true;
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
