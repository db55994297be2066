// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/iteration_memory.h>

#include <algorithm>
#include <map>
#include <set>

#include <millrace/runtime/layers/spell_cells.h>
#include <millrace/runtime/lowering/internal/loop_place.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

/// The values that the gradient of an op reads.
struct Looks {
  bool inputs = true;
  bool output = true;
};
Looks looks_of(const Op& op) {
  static const std::map<std::string, Looks> known{{"add", {false, false}},
                                                  {"sub", {false, false}},
                                                  {"neg", {false, false}},
                                                  {"split", {false, false}},
                                                  {"slice", {false, false}},
                                                  {"concat", {false, false}},
                                                  {"reshape", {false, false}},
                                                  {"reshape_to", {false, false}},
                                                  {"squeeze", {false, false}},
                                                  {"flatten", {false, false}},
                                                  {"unsqueeze", {false, false}},
                                                  {"transpose", {false, false}},
                                                  {"identity", {false, false}},
                                                  {"cast", {false, false}},
                                                  {"expand", {false, false}},
                                                  {"pad", {false, false}},
                                                  {"sigmoid", {false, true}},
                                                  {"tanh", {false, true}},
                                                  {"exp", {false, true}},
                                                  {"sqrt", {false, true}},
                                                  {"relu", {false, true}},
                                                  {"softmax", {false, true}},
                                                  {"log_softmax", {false, true}},
                                                  {"reciprocal", {false, true}},
                                                  {"quantize_rows", {false, false}},
                                                  {"matmul_int8", {false, false}},
                                                  {"round_to_bytes", {false, false}},
                                                  {"matmul_bytes", {false, false}},
                                                  {"mul", {true, false}},
                                                  {"sigmoid_gradient", {true, false}},
                                                  {"tanh_gradient", {true, false}},
                                                  {"matmul", {true, false}},
                                                  {"gemm", {true, false}},
                                                  {"conv1d", {true, false}},
                                                  {"maximum", {true, false}},
                                                  {"minimum", {true, false}},
                                                  {"abs", {true, false}},
                                                  {"layer_norm", {true, false}},
                                                  {"log", {true, false}},
                                                  {"clip", {true, false}}};
  if (op.type == "reduce") {
    const auto kind = op.attributes.get_or("kind", std::string("sum"));
    const bool linear = kind == "sum" || kind == "mean";
    return {!linear, !linear};
  }
  const auto found = known.find(op.type);
  return found == known.end() ? Looks{} : found->second;
}

/// A loop's body, read for what flows back through it.
class IterationReader {
 public:
  IterationReader(const Program& program, int body) : program_(program), body_(program.block(body)) {
    const auto [block, place] = lowering::find_loop(program, body);
    const LoopForm form = find_loop_form(program, block, program.block(block).ops[place]);
    rows_ = lowering::row_vars(program, body, form);
    for (std::size_t i = 0; i < body_.params.size(); ++i) {
      if (form.carried[i].counter) continue;
      if (body_.results[i] != body_.params[i]) next_[body_.params[i]] = body_.results[i];
      ends_.push_back(body_.results[i]);
    }
    read_arrays();
    for (const Op& op : body_.ops)
      for (const VarId output : op.outputs) makers_[output] = &op;
    find_needed();
  }

  const std::vector<VarId>& needed() const { return needed_; }
  /// As people know it: an identity has the name that was meant.
  std::string name(VarId var) const {
    const auto called = called_.find(var);
    return program_.var(called == called_.end() ? var : called->second).name;
  }
  VarId canonical(VarId var) const {
    for (auto at = same_.find(var); at != same_.end(); at = same_.find(var)) var = at->second;
    return var;
  }

  /// The value to keep so that `var` is there in a later iteration or in this one: itself, or what an iteration before makes of it; none for what is
  /// there anyway.
  VarId holder(VarId var) const {
    std::set<VarId> seen;
    for (var = canonical(var); seen.insert(var).second; var = canonical(next_.at(var))) {
      if (next_.contains(var)) continue;
      const DType dtype = program_.var(var).type.dtype;
      const bool held = is_floating(dtype) || dtype == DType::boolean;
      return held && rows_.contains(var) && makers_.contains(var) && !inputs_.contains(var) ? var : no_var;
    }
    return no_var;  // states that only take each other's places: all of them are known at the start
  }

  /// Vars that hold the states that this iteration takes and changes, all of them or the needed ones.
  std::vector<VarId> states(bool all) const {
    std::vector<VarId> found;
    for (const auto& [state, next] : next_)
      if (all || std::find(needed_.begin(), needed_.end(), state) != needed_.end()) add(found, holder(state));
    return found;
  }

  IterationMemory memory(const std::set<VarId>& kept) const {
    IterationMemory made;
    std::set<VarId> known;
    for (const VarId var : needed_) {
      made.needed.push_back(name(var));
      recompute(var, kept, known, made);
    }
    return made;
  }

  static void add(std::vector<VarId>& vars, VarId var) {
    if (var != no_var && std::find(vars.begin(), vars.end(), var) == vars.end()) vars.push_back(var);
  }

 private:
  void read_arrays() {
    std::map<VarId, const Op*> writes;
    for (const Op& op : body_.ops)
      if (op.type == "tensor_array_write") writes[op.inputs[0]] = &op;
    for (const Op& op : body_.ops) {
      if (op.type == "shrink" || program_.registry().at(op.type).traits.forwards) same_[op.outputs[0]] = op.inputs[0];
      if (op.type == "identity") called_[canonical(op.inputs[0])] = op.outputs[0];
      if (op.type == "tensor_array_write") ends_.push_back(op.inputs[2]);
      if (op.type != "tensor_array_read") continue;
      const auto write = writes.find(op.inputs[0]);
      if (write == writes.end())
        inputs_.insert(op.outputs[0]);
      else if (write->second->inputs[1] == op.inputs[1])
        same_[op.outputs[0]] = write->second->inputs[2];  // of this iteration
      else
        next_[op.outputs[0]] = write->second->inputs[2];
    }
  }

  bool is_literal(VarId var) const { return program_.constant(var) != nullptr && program_.parameter(var) == nullptr; }

  /// From what the iteration hands on back to what it takes.
  void find_needed() {
    std::set<VarId> live;
    for (const VarId end : ends_) live.insert(canonical(end));
    for (auto op = body_.ops.rbegin(); op != body_.ops.rend(); ++op) {
      if (program_.registry().at(op->type).cuts_gradient || op->outputs.empty() || op->type == "tensor_array_read") continue;
      if (std::none_of(op->outputs.begin(), op->outputs.end(), [&](VarId output) { return live.contains(output); })) continue;
      for (const VarId input : op->inputs)
        if (input != no_var && rows_.contains(input)) live.insert(canonical(input));
      look(*op);
    }
    std::reverse(needed_.begin(), needed_.end());
  }
  void look(const Op& op) {
    const auto need = [this](VarId var) {
      if (var != no_var && rows_.contains(var)) add(needed_, canonical(var));
    };
    const Looks looks = looks_of(op);
    if (looks.output)
      for (const VarId output : op.outputs) need(output);
    if (op.type == "where") return need(op.inputs[0]);
    if (op.type == "div") return is_literal(op.inputs[1]) ? void() : need(op.inputs[1]);
    for (std::size_t i = 0; looks.inputs && i < op.inputs.size(); ++i)
      if (op.type != "mul" || !is_literal(op.inputs[1 - i])) need(op.inputs[i]);  // a number has no gradient
  }

  void recompute(VarId var, const std::set<VarId>& kept, std::set<VarId>& known, IterationMemory& made) const {
    var = canonical(var);
    if (!rows_.contains(var) || !known.insert(var).second || kept.contains(var) || inputs_.contains(var)) return;
    const VarId held = holder(var);
    if (next_.contains(var)) {
      if (held != no_var && !kept.contains(held)) made.missing.push_back(name(var));
      return;
    }
    const auto maker = makers_.find(var);
    if (maker == makers_.end()) return;  // does not change
    for (const VarId input : maker->second->inputs)
      if (input != no_var) recompute(input, kept, known, made);
    made.recomputed.push_back(name(var));
    if (program_.registry().at(maker->second->type).traits.product) ++made.products;
  }

  const Program& program_;
  const Block& body_;
  std::set<VarId> rows_;
  std::set<VarId> inputs_;       // slots of arrays that others wrote
  std::map<VarId, VarId> next_;  // a state before the iteration → what the iteration makes of it
  std::map<VarId, VarId> same_;  // another name → what it is
  std::map<VarId, VarId> called_;
  std::map<VarId, const Op*> makers_;
  std::vector<VarId> ends_;  // the values that the iteration hands on
  std::vector<VarId> needed_;
};

void spell_cells(Program& program, int body) {
  for (bool found = true; found;) {
    found = false;
    for (const Op& op : program.block(body).ops)
      if (op.type == "lstm_cell" || op.type == "lstm_gates") {
        found = layers::spell_cell(program, op.outputs[0]);
        break;
      }
  }
}

}  // namespace

std::vector<std::string> values_to_keep(Program& program, int body, Keep keep) {
  lowering::find_loop(program, body);
  Program made = program;
  spell_cells(made, body);
  const IterationReader iteration(made, body);
  std::vector<VarId> values = iteration.states(keep == Keep::states);
  const std::size_t states = values.size();
  if (keep != Keep::states)
    for (const VarId var : iteration.needed()) IterationReader::add(values, iteration.holder(var));
  std::set<VarId> kept(values.begin(), values.end());
  for (std::size_t i = values.size(); keep == Keep::lean && i-- > states;) {
    kept.erase(values[i]);
    const IterationMemory without = iteration.memory(kept);
    if (without.products > 0 || !without.missing.empty()) kept.insert(values[i]);
  }
  std::vector<std::string> names;
  for (const VarId var : values)
    if (kept.contains(var)) names.push_back(iteration.name(var));
  program = std::move(made);
  return names;
}

IterationMemory iteration_memory(const Program& program, int body, const std::vector<std::string>& kept) {
  const IterationReader iteration(program, body);
  std::set<VarId> vars;
  std::int64_t elements = 0;
  for (const std::string& name : kept) {
    const VarId var = program.find_var(name);
    if (var == no_var || program.var(var).block != body)
      throw ProgramError("iteration_memory: expected the name of a value of block " + std::to_string(body) + ", found '" + name + "'");
    vars.insert(iteration.canonical(var));
    const VarType& type = program.var(var).type;
    for (int axis = 1; axis < type.rank(); ++axis)
      if ((*type.shape)[axis] == DDim::unknown) elements = -1;
    if (elements >= 0 && type.rank() > 0) elements += type.shape->erased(0).elements();
  }
  IterationMemory made = iteration.memory(vars);
  made.kept = elements;
  return made;
}

}  // namespace millrace
