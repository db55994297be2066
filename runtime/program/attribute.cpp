// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/attribute.h>

#include <array>

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
void Attributes::mistyped(const std::string& name, const Attribute& wanted, const Attribute& found) {
  static constexpr std::array<const char*, std::variant_size_v<Attribute>> kinds = {
      "true or false", "an integer", "a float", "a string", "a dtype", "a block", "integers", "floats", "strings", "a tensor"};
  throw ProgramError("attribute '" + name + "': expected " + kinds[wanted.index()] + ", found " + kinds[found.index()]);
}

}  // namespace millrace
