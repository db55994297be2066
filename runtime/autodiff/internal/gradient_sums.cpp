// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/gradient_sums.h>

#include <utility>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/program/internal/op_name.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/visit.h>

namespace millrace::autodiff {
namespace {

class RuleContext : public GradientContext {
 public:
  RuleContext(Program& program, const Op& op, const std::function<bool(std::size_t)>& wants, const std::function<VarId(VarId)>& value,
              const std::function<VarId(VarId)>& gradient)
      : program_(program), op_(op), wants_(wants), value_(value), gradient_(gradient), set_(op.inputs.size(), no_var) {}

  const Program& program() const override { return program_; }
  const Op& op() const override { return op_; }
  bool wants(std::size_t input) const override { return has(input) && wants_(input); }
  VarId input(std::size_t input) override { return value_(op_.inputs.at(input)); }
  VarId output(std::size_t output) override { return value_(op_.outputs.at(output)); }
  VarId gradient(std::size_t output) const override { return gradient_(op_.outputs.at(output)); }
  std::vector<VarId> append(Op op) override { return emit(program_, std::move(op)); }
  void set(std::size_t input, VarId gradient) override {
    VarId& held = set_.at(input);
    if (held != no_var)
      throw ProgramError("gradient of op " + op_.type + ": input " + std::to_string(input) + " gets a gradient a second time");
    held = gradient;
  }
  std::vector<VarId> take() { return std::move(set_); }

 private:
  Program& program_;
  const Op op_;  // a copy: the block that holds it may grow
  const std::function<bool(std::size_t)>& wants_;
  const std::function<VarId(VarId)>& value_;
  const std::function<VarId(VarId)>& gradient_;
  std::vector<VarId> set_;
};

}  // namespace

std::vector<VarId> emit(Program& program, Op op, const std::vector<std::string>& names) {
  return program.append(build::Guard::current().block(), std::move(op), names);
}

VarId emit1(Program& program, const std::string& type, std::vector<VarId> inputs, Attributes attributes, const std::string& name) {
  return emit(program, Op{type, std::move(inputs), {}, std::move(attributes), {}}, {name}).at(0);
}

VarId without_lod(Program& program, VarId x) {
  return program.var(x).type.lod_depth == 0 ? x : emit1(program, "drop_lod", {x}, {}, program.var(x).name);
}

VarId with_lod_of(Program& program, VarId x, VarId like) {
  if (program.var(like).type.lod_depth == 0) return x;
  return emit1(program, "lod_reset", {without_lod(program, x), no_var, like}, {}, program.var(x).name);
}

VarId zeros_like(Program& program, VarId like) {
  const VarType type = program.var(like).type;
  const Attributes zero{{"value", number(type.dtype, 0)}};
  if (!type.is_static()) return emit1(program, "constant_of_shape", {emit1(program, "shape", {without_lod(program, like)})}, zero, "zeros");
  const std::vector<std::int64_t> extents(type.shape->begin(), type.shape->end());
  const VarId shape = emit1(program, "constant", {}, {{"value", Tensor::from(extents, DDim{type.rank()})}});
  return emit1(program, "constant_of_shape", {shape}, zero, "zeros");
}

Tensor number(DType dtype, double value) {
  return visit_dtype(dtype, [value]<class T>(std::type_identity<T>) { return Tensor::scalar(convert_element<T>(value)); });
}

GradientSums::GradientSums(Program& program, const std::set<VarId>& active, std::function<VarId(VarId)> value, std::string where)
    : program_(program), active_(active), value_(std::move(value)), where_(std::move(where)) {}

namespace {

/// The gradient with the extents that its value is known to have: an array without slots would lose them.
VarId with_extents_of(Program& program, VarId gradient, VarId value) {
  const VarType of_value = program.var(value).type, found = program.var(gradient).type;
  if (!of_value.is_tensor() || !of_value.shape || !found.shape || of_value.rank() != found.rank()) return gradient;
  std::vector<std::int64_t> shape;
  bool more = false;
  for (int axis = 0; axis < found.rank(); ++axis) {
    const bool states = (*found.shape)[axis] == DDim::unknown && (*of_value.shape)[axis] > 0;
    shape.push_back(states ? (*of_value.shape)[axis] : 0);  // 0 copies the extent
    more = more || states;
  }
  return more ? emit1(program, "reshape", {gradient}, {{"shape", shape}}, program.var(gradient).name) : gradient;
}

}  // namespace

void GradientSums::add(VarId var, VarId gradient) {
  if (gradient == no_var || !active(var)) return;
  terms_[var].push_back(with_extents_of(program_, without_lod(program_, gradient), var));
}

std::vector<VarId> GradientSums::vars() const {
  std::vector<VarId> all;
  for (const auto& [var, terms] : terms_) all.push_back(var);
  return all;
}

VarId GradientSums::sum(VarId var) {
  const auto found = terms_.find(var);
  if (found == terms_.end()) return no_var;
  std::vector<VarId>& terms = found->second;
  VarId total = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) total = emit1(program_, "add", {total, terms[i]}, {}, "d_" + program_.var(var).name);
  terms = {total};
  return total;
}

VarId GradientSums::sum_with_lod(VarId var) {
  const VarId total = sum(var);
  if (total == no_var || program_.var(var).type.lod_depth == 0) return total;
  return with_lod_of(program_, total, value_(var));
}

std::vector<VarId> GradientSums::call_rule(Program& program, const Op& op, const std::function<bool(std::size_t)>& wants,
                                           const std::function<VarId(VarId)>& value, const std::function<VarId(VarId)>& gradient,
                                           const std::string& where) {
  const GradientRule rule = program.registry().at(op.type).gradient;
  if (!rule) {
    throw UnsupportedError("append_backward: " + internal::op_name(op) + " has no gradient rule: '" + program.var(op.outputs.at(0)).name +
                           "'" + where + " has a gradient");
  }
  RuleContext context(program, op, wants, value, gradient);
  rule(context);
  return context.take();
}

void GradientSums::visit(const Op& op, const std::function<bool(VarId)>& chosen) {
  bool any = false;
  for (const VarId output : op.outputs) any = any || has(output);
  if (!any || !passes_gradient(program_, op)) return;
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the rule appends ops, and that may move `op`
  const Op held = op;
  const auto wants = [&](std::size_t input) {
    const VarId var = held.inputs[input];
    return active(var) && (!chosen || chosen(var));
  };
  bool wanted = false;
  for (std::size_t i = 0; i < held.inputs.size(); ++i) wanted = wanted || wants(i);
  if (!wanted) return;
  const std::vector<VarId> made = call_rule(program_, held, wants, value_, [this](VarId output) { return sum_with_lod(output); }, where_);
  for (std::size_t i = 0; i < made.size(); ++i)
    if (held.inputs[i] != no_var && wants(i)) add(held.inputs[i], made[i]);
}

}  // namespace millrace::autodiff
