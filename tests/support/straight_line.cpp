// SPDX-License-Identifier: Apache-2.0
#include "support/straight_line.h"

#include <map>

#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::testing {

StraightLine::StraightLine(Program program) : program_(std::move(program)) {
  for (const Op& op : program_.block(0).ops) kernels_.push_back(program_.registry().at(op.type).prepare(PrepareContext(program_, op)));
}

std::vector<Value> StraightLine::run(const std::vector<Value>& inputs) {
  std::map<VarId, Value> values;
  for (const auto& [var, tensor] : program_.parameters()) values[var] = tensor;
  for (std::size_t i = 0; i < program_.inputs().size(); ++i) values[program_.inputs()[i].var] = inputs.at(i);
  const std::vector<Op>& ops = program_.block(0).ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    std::vector<const Value*> read;
    for (const VarId input : ops[i].inputs) read.push_back(input == no_var ? nullptr : &values.at(input));
    std::vector<Value> made(ops[i].outputs.size());
    OpContext context(ops[i], read, made, device_.stream(0));
    kernels_[i](context);
    for (std::size_t k = 0; k < made.size(); ++k) values[ops[i].outputs[k]] = std::move(made[k]);
  }
  std::vector<Value> results;
  for (const Program::Port& port : program_.outputs()) results.push_back(values.at(port.var));
  return results;
}

std::vector<Tensor> StraightLine::operator()(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> results;
  for (const Value& value : run({inputs.begin(), inputs.end()})) results.push_back(value.tensor().tensor());
  return results;
}

Program one_op(const std::string& type, const std::vector<VarType>& types, const Attributes& attributes) {
  Program program;
  Op op{type, {}, {}, attributes, {}};
  for (const VarType& input : types) op.inputs.push_back(program.add_input("in" + std::to_string(op.inputs.size()), input));
  std::size_t count = 0;
  for (const VarId output : program.append(0, std::move(op))) program.add_output("out" + std::to_string(count++), output);
  return program;
}

std::vector<Tensor> run_op(const std::string& type, const std::vector<Tensor>& inputs, const Attributes& attributes) {
  std::vector<VarType> types;
  for (const Tensor& input : inputs) types.emplace_back(input.dtype(), input.dims());
  return StraightLine(one_op(type, types, attributes))(inputs);
}

std::vector<VarType> infer_op(const std::string& type, const std::vector<VarType>& types, const Attributes& attributes) {
  const Program program = one_op(type, types, attributes);
  std::vector<VarType> results;
  for (const Program::Port& port : program.outputs()) results.push_back(program.var(port.var).type);
  return results;
}

std::string refusal(const std::string& type, const std::vector<VarType>& types, const Attributes& attributes) {
  try {
    infer_op(type, types, attributes);
  } catch (const ProgramError& error) {
    return error.what();
  }
  return {};
}

}  // namespace millrace::testing
