// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/activity.h>

#include <algorithm>

#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/dtype.h>

namespace millrace::autodiff {
namespace {

/// Ops whose outputs depend on no element of their inputs.
bool reads_no_element(const Op& op) {
  return op.type == "stop_gradient" || op.type == "tensor_array_size" || op.type == "list_length" || op.type == "shape" ||
         op.type == "no_slot_gradients";
}

class Activity {
 public:
  Activity(const Program& program, const std::vector<VarId>& stopped) : program_(program), stopped_(stopped.begin(), stopped.end()) {}

  std::set<VarId> run(const std::vector<VarId>& sources) {
    for (const VarId source : sources) mark(source);
    while (std::exchange(changed_, false)) visit(0);
    return std::move(active_);
  }

 private:
  bool carries(VarId var) const {
    const VarType& type = program_.var(var).type;
    if (type.kind == VarKind::order) return false;
    return (type.is_array() && type.open) || is_floating(type.dtype);
  }
  void mark(VarId var) {
    if (var == no_var || stopped_.contains(var) || !carries(var)) return;
    changed_ = active_.insert(var).second || changed_;
  }
  bool active(VarId var) const { return active_.contains(var); }
  void follow(VarId from, VarId to) {
    if (active(from)) mark(to);
  }

  void visit(int block) {
    for (const Op& op : program_.block(block).ops) visit(op);
  }

  void visit(const Op& op) {
    if (op.type == "while") return visit_while(op);
    if (op.type == "if") return visit_if(op);
    if (op.type == "break_if" || !passes_gradient(program_, op)) return;
    if (const auto& stores = program_.registry().at(op.type).stores)
      return follow(op.inputs.at(stores->second), op.inputs.at(stores->first));
    if (std::none_of(op.inputs.begin(), op.inputs.end(), [this](VarId input) { return active(input); })) return;
    for (const VarId output : op.outputs) mark(output);
  }

  void visit_while(const Op& op) {
    const Block& body = program_.block(op.attributes.get<BlockId>("sub_block").index);
    for (std::size_t i = 0; i < body.params.size(); ++i) {
      follow(op.inputs[i], body.params[i]);
      follow(op.inputs[i], op.outputs[i]);
    }
    visit(body.idx);
    for (std::size_t i = 0; i < body.params.size(); ++i) {
      follow(body.results[i], body.params[i]);
      follow(body.results[i], op.outputs[i]);
    }
    for (const Op& inner : body.ops) {
      if (inner.type != "break_if") continue;
      for (std::size_t i = 1; i < inner.inputs.size(); ++i) follow(inner.inputs[i], op.outputs[i - 1]);
    }
  }

  void visit_if(const Op& op) {
    for (const char* name : {"then_block", "else_block"}) {
      const Block& branch = program_.block(op.attributes.get<BlockId>(name).index);
      visit(branch.idx);
      for (std::size_t i = 0; i < branch.results.size(); ++i) follow(branch.results[i], op.outputs[i]);
    }
  }

  const Program& program_;
  const std::set<VarId> stopped_;
  std::set<VarId> active_;
  bool changed_ = false;
};

}  // namespace

std::set<VarId> active_vars(const Program& program, const std::vector<VarId>& sources, const std::vector<VarId>& stopped) {
  return Activity(program, stopped).run(sources);
}

void for_each_sub_block(const Op& op, const std::function<void(int)>& f) {
  for (const auto& [name, attribute] : op.attributes)
    if (const auto* id = std::get_if<BlockId>(&attribute)) f(id->index);
}

VarId written_array(const Program& program, const Op& op) {
  if (op.type == "tensor_array_written") return op.inputs.at(0);
  const auto& stores = program.registry().at(op.type).stores;
  return stores ? op.inputs.at(stores->first) : no_var;
}

VarId written_value(const Program& program, const Op& op) {
  if (op.type == "tensor_array_written") return op.inputs.at(2);
  const auto& stores = program.registry().at(op.type).stores;
  return stores ? op.inputs.at(stores->second) : no_var;
}

bool passes_gradient(const Program& program, const Op& op) {
  return !reads_no_element(op) && !program.registry().at(op.type).cuts_gradient;
}

}  // namespace millrace::autodiff
