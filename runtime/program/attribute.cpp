// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/attribute.h>

#include <millrace/runtime/program/errors.h>

namespace millrace {

void Attributes::set(const std::string& name, Attribute value) {
  for (auto& [key, held] : entries_) {
    if (key != name) continue;
    held = std::move(value);
    return;
  }
  entries_.emplace_back(name, std::move(value));
}

const Attribute* Attributes::find(const std::string& name) const noexcept {
  for (const auto& [key, held] : entries_)
    if (key == name) return &held;
  return nullptr;
}

void Attributes::missing(const std::string& name) { throw ProgramError("attribute '" + name + "': expected one, found none"); }
void Attributes::mistyped(const std::string& name) {
  throw ProgramError("attribute '" + name + "': found another type than the op expects");
}

}  // namespace millrace
