// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/internal/fold.h>

#include <millrace/runtime/executor/run_program.h>

namespace millrace::lowering {

std::vector<Tensor> fold(const Program& program, const Op& op, const std::vector<const Tensor*>& inputs) {
  Program one(program.shared_registry());
  Op copied{op.type, {}, {}, op.attributes, op.label};
  for (std::size_t i = 0; i < inputs.size(); ++i)
    copied.inputs.push_back(inputs[i] == nullptr ? no_var : one.add_parameter("in" + std::to_string(i), *inputs[i]));
  const std::vector<VarId> outputs = one.append(0, std::move(copied));
  for (std::size_t i = 0; i < outputs.size(); ++i) one.add_output(std::to_string(i), outputs[i]);
  std::vector<Tensor> values;
  for (const Value& value : run_straight(Executable(std::move(one)), {})) values.push_back(value.tensor().tensor());
  return values;
}

}  // namespace millrace::lowering
