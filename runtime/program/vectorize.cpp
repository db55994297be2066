// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/vectorize.h>

#include <algorithm>
#include <string_view>

#include <millrace/runtime/program/internal/op_name.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {

bool Vectorizer::any_batched(const Op& op) const {
  return std::any_of(op.inputs.begin(), op.inputs.end(), [this](VarId id) { return batched(id); });
}

int Vectorizer::rank(VarId old) const {
  const VarDef& var = from_.var(old);
  if (var.type.rank() < 0) throw UnsupportedError("'" + var.name + "': expected a known rank, found " + var.type.to_string());
  return var.type.rank();
}

VarId Vectorizer::aligned(VarId old, int rank) {
  const int own = this->rank(old);
  if (!batched(old) || own >= rank) return get(old);
  std::vector<std::int64_t> axes;
  for (int axis = 1; axis <= rank - own; ++axis) axes.push_back(axis);
  return emit("unsqueeze", {get(old)}, {{"axes", axes}})[0];
}

std::vector<VarId> Vectorizer::emit(const std::string& type, const std::vector<VarId>& inputs, Attributes attributes) {
  return to_.append(0, Op{type, inputs, {}, std::move(attributes), {}});
}

void Vectorizer::bind_all(const std::vector<VarId>& olds, const std::vector<VarId>& made, bool batched) {
  for (std::size_t i = 0; i < olds.size(); ++i) bind(olds[i], made.at(i), batched);
}

void Vectorizer::rewrite(const Op& op) {
  if (!any_batched(op)) {
    std::vector<VarId> inputs;
    std::vector<std::string> names;
    for (const VarId input : op.inputs) inputs.push_back(get(input));
    for (const VarId output : op.outputs) names.push_back(from_.var(output).name);
    Op copied{op.type, std::move(inputs), {}, op.attributes, op.label};
    bind_all(op.outputs, to_.append(0, std::move(copied), names), false);
    return;
  }
  const OpDef& def = from_.registry().at(op.type);
  const std::string name = internal::op_name(op);
  if (!def.vectorize) throw UnsupportedError(name + ": has no rule for many sequences at once");
  try {
    def.vectorize(*this, op);
  } catch (Error& error) {
    // The op where the error began says where; ops around it would say nothing of the cause.
    if (std::string_view(error.what()).find(", for many sequences at once)") == std::string_view::npos)
      error.add_context(" (" + name + ", for many sequences at once)");
    throw;
  }
}

Program vectorize(const Program& program) {
  Program made(program.shared_registry());
  made.set_title(program.title() + " for many");
  Vectorizer vectorizer(program, made);
  for (const Program::Port& port : program.inputs()) {
    VarType type = program.var(port.var).type;
    type.shape = type.shape->inserted(0, DDim::unknown);
    vectorizer.bind(port.var, made.add_input(port.name, type), true);
  }
  for (const auto& [var, value] : program.parameters()) vectorizer.bind(var, made.add_parameter(program.var(var).name, value), false);
  for (const Op& op : program.block(0).ops) vectorizer.rewrite(op);
  for (const Program::Port& port : program.outputs()) {
    VarId var = vectorizer.get(port.var);
    // A value that does not depend on any sequence is the same for all of them, and still comes once for each.
    if (!vectorizer.batched(port.var)) throw UnsupportedError("output '" + port.name + "': does not depend on the input");
    made.add_output(port.name, var);
  }
  return made;
}

}  // namespace millrace
