// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/program/gradient.h>
#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Gradients of vars while ops are gone through in reverse, and the call of an op's rule. Ops are appended to the block that the innermost
/// build::Guard of the program appends to. Gradients are kept without LoD, and summed in the order in which they were added.
class GradientSums {
 public:
  /// `value` gives a forward value as a var that the innermost guard's block sees. `where`: of messages, such as "the loop of block 1".
  GradientSums(Program& program, const std::set<VarId>& active, std::function<VarId(VarId)> value, std::string where = {});

  Program& program() const noexcept { return program_; }
  bool active(VarId var) const { return var != no_var && active_.contains(var); }

  /// One more term of the gradient of `var`; nothing when it is `no_var` or the var is not active.
  void add(VarId var, VarId gradient);
  /// Puts a sum in the place of the terms.
  void replace(VarId var, VarId total) { terms_[var] = {total}; }
  /// Vars that have a gradient.
  std::vector<VarId> vars() const;
  bool has(VarId var) const { return terms_.contains(var); }
  /// The sum of the terms, without LoD; `no_var` when there are none.
  VarId sum(VarId var);
  /// The sum of the terms, with the LoD of `var`'s value; `no_var` when there are none.
  VarId sum_with_lod(VarId var);
  VarId value(VarId var) const { return value_(var); }

  /// Calls the rule of `op` for those inputs that are active and that `chosen` holds (all inputs, when it is empty). Nothing when no output
  /// has a gradient. UnsupportedError when the op has no rule.
  void visit(const Op& op, const std::function<bool(VarId)>& chosen = {});
  /// The same rule, asked for other values and gradients than the sums'. Gives the gradients of the inputs, `no_var` for none.
  static std::vector<VarId> call_rule(Program& program, const Op& op, const std::function<bool(std::size_t)>& wants,
                                      const std::function<VarId(VarId)>& value, const std::function<VarId(VarId)>& gradient,
                                      const std::string& where);

 private:
  Program& program_;
  const std::set<VarId>& active_;
  std::function<VarId(VarId)> value_;
  std::string where_;
  std::map<VarId, std::vector<VarId>> terms_;
};

/// Appends an op to the block of the innermost guard.
std::vector<VarId> emit(Program& program, Op op, const std::vector<std::string>& names = {});
VarId emit1(Program& program, const std::string& type, std::vector<VarId> inputs, Attributes attributes = {}, const std::string& name = {});
/// `x` without LoD; itself when it has none.
VarId without_lod(Program& program, VarId x);
/// `x` with the LoD of `like`; itself when `like` has none.
VarId with_lod_of(Program& program, VarId x, VarId like);
/// Zeros of dtype and extents of `like`, without LoD.
VarId zeros_like(Program& program, VarId like);
/// A number of `dtype`, without axes.
Tensor number(DType dtype, double value);

}  // namespace millrace::autodiff
