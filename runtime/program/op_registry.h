// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <millrace/runtime/program/op_def.h>

namespace millrace {

/// The ops a program may hold, by name. A copy of the standard registry takes ops from outside the tree:
///
///     auto ops = std::make_shared<OpRegistry>(*standard_ops());
///     ops->add({.name = "my_op", …});
///     Program program(ops);
class OpRegistry {
 public:
  /// ProgramError when the name is taken, or a name cannot stand in the text form.
  void add(OpDef def);
  /// ProgramError when there is no such op.
  void set_traits(const std::string& name, OpTraits traits);
  /// Sets the gradient rule of a registered op. ProgramError when there is none of that name, or it has a rule or cuts gradients already.
  void set_gradient(const std::string& name, GradientRule rule);
  /// Registered ops through which no gradient goes (`OpDef::cuts_gradient`). Errors as above.
  void cut_gradients(const std::vector<std::string>& names);
  /// Null when there is none.
  const OpDef* find(const std::string& name) const noexcept;
  /// ProgramError that names the op otherwise.
  const OpDef& at(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  OpDef& without_rule(const std::string& name);
  std::map<std::string, OpDef> ops_;
};

/// The ops of this library.
std::shared_ptr<const OpRegistry> standard_ops();

}  // namespace millrace
