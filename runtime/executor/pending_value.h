// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <millrace/runtime/executor/var_scope.h>
#include <millrace/runtime/program/value.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/task.h>

namespace millrace {

/// A value, or the place where it will be.
struct PendingValue {
  Value value;
  std::shared_ptr<VarScope> scope;  ///< null when `value` is there
  std::size_t index = 0;
  const std::string* name = nullptr;  ///< of the var, as long as the program lives
};

/// Sets a var of `to` now, or, by a task of `tasks`, as soon as the value is there. If it never comes, the var fails.
void deliver(PendingValue from, const std::shared_ptr<VarScope>& to, std::size_t index, Scope& tasks);

/// Sets a var of `to`, a younger scope, or links it to the place where its value will be.
void set_or_link(PendingValue from, VarScope& to, std::size_t index);

/// Whether the elements of a condition can be read now.
bool is_known(const Value& condition);
/// A condition that is known. ShapeError, which begins with `what`: it is no boolean of one element.
bool known_truth(const Value& condition, std::string_view what);
/// Awaits a condition; errors as `known_truth`.
task<bool> truth(PendingValue condition, std::string what);

}  // namespace millrace
