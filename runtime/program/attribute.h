// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <millrace/tensor/tensor.h>

namespace millrace {

/// The index of a sub-block, as an attribute.
struct BlockId {
  int index = -1;
  friend bool operator==(BlockId, BlockId) = default;
};

/// A constant of an op. A tensor is a literal: small, on the host, printed with all its bits.
using Attribute = std::variant<bool, std::int64_t, double, std::string, DType, BlockId, std::vector<std::int64_t>, std::vector<double>,
                               std::vector<std::string>, Tensor>;

/// Named attributes of one op, in the order they were set.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Attribute>> entries) : entries_(entries) {}
  /// `entries` name no attribute twice.
  explicit Attributes(std::vector<std::pair<std::string, Attribute>> entries) : entries_(std::move(entries)) {}

  void set(const std::string& name, Attribute value);
  bool has(const std::string& name) const noexcept { return find(name) != nullptr; }
  const Attribute* find(const std::string& name) const noexcept;
  /// The attribute as a `T`; ProgramError names the attribute when it is absent or of another type.
  template <class T>
  const T& get(const std::string& name) const {
    const Attribute* found = find(name);
    if (found == nullptr) missing(name);
    const T* value = std::get_if<T>(found);
    if (value == nullptr) mistyped(name, Attribute(std::in_place_type<T>), *found);
    return *value;
  }
  /// The attribute, or `otherwise` where it is absent.
  template <class T>
  T get_or(const std::string& name, T otherwise) const {
    return has(name) ? get<T>(name) : otherwise;
  }

  auto begin() const noexcept { return entries_.begin(); }
  auto end() const noexcept { return entries_.end(); }
  std::size_t size() const noexcept { return entries_.size(); }

 private:
  [[noreturn]] static void missing(const std::string& name);
  [[noreturn]] static void mistyped(const std::string& name, const Attribute& wanted, const Attribute& found);
  std::vector<std::pair<std::string, Attribute>> entries_;
};

}  // namespace millrace
