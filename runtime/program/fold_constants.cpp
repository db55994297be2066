// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/fold_constants.h>

#include <algorithm>

#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/device.h>

namespace millrace {
namespace {

// A few numbers of a program text may ask for any size. A larger value is computed when the program runs, if it ever does.
constexpr std::size_t folded_bytes = std::size_t{256} << 20;

bool foldable(const Program& program, const Op& op) {
  const OpDef& def = program.registry().at(op.type);
  if (op.type == "constant" || !def.pure || !def.prepare || op.outputs.empty()) return false;
  for (const VarId output : op.outputs)
    if (!program.var(output).type.is_tensor() || program.var(output).type.lod_depth > 0) return false;
  return std::all_of(op.inputs.begin(), op.inputs.end(), [&](VarId in) { return in == no_var || program.constant(in) != nullptr; });
}

}  // namespace

std::vector<Tensor> evaluate_op(const Program& program, const Op& op, const std::vector<const Tensor*>& inputs) {
  CpuDevice device(1, 1, std::make_shared<CachingResource>(host_memory(), folded_bytes));
  std::vector<Value> values;
  for (const Tensor* input : inputs) values.push_back(input == nullptr ? Value() : Value(*input));
  std::vector<const Value*> pointers;
  for (std::size_t i = 0; i < inputs.size(); ++i) pointers.push_back(inputs[i] == nullptr ? nullptr : &values[i]);
  std::vector<Value> outputs(op.outputs.size());
  OpContext context(op, pointers, outputs, device.stream(0));
  program.registry().at(op.type).prepare(PrepareContext(program, op))(context);
  std::vector<Tensor> made;
  for (const Value& output : outputs) {
    const Tensor& tensor = output.tensor().tensor();
    made.push_back((tensor.is_contiguous() ? tensor : tensor.copy_to(CpuPlace{})).read_only());
  }
  return made;
}

void fold_constants(Program& program) {
  for (const Block& block : program.blocks()) {
    for (std::size_t i = 0; i < block.ops.size(); ++i) {
      const Op op = block.ops[i];
      if (!foldable(program, op)) continue;
      std::vector<const Tensor*> inputs;
      for (const VarId in : op.inputs) inputs.push_back(in == no_var ? nullptr : program.constant(in));
      std::vector<Tensor> values;
      try {
        values = evaluate_op(program, op, inputs);
      } catch (const Error&) {
        continue;
      }
      program.replace_with_constants(block.idx, i, values);
      i += values.size() - 1;
    }
  }
}

}  // namespace millrace
