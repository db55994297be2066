// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_convolutions.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

constexpr std::size_t first_operand = 3;  // behind X, W and B

/// `convolution` and its arithmetic, in the place of the arithmetic.
Op joined(const Op& convolution, const Op& arithmetic) {
  const VarId result = convolution.outputs[0];
  std::vector<VarId> inputs = convolution.inputs;
  inputs.resize(first_operand, no_var);
  for (std::size_t i = 1; i < arithmetic.inputs.size(); ++i)
    inputs.push_back(arithmetic.inputs[i] == result ? no_var : arithmetic.inputs[i]);
  Attributes attributes = convolution.attributes;
  attributes.set("steps", arithmetic.attributes.get<std::string>("steps"));
  return Op{convolution.type + "_arithmetic", std::move(inputs), arithmetic.outputs, std::move(attributes), convolution.label};
}

}  // namespace

void join_convolutions(Program& program) {
  if (program.registry().find("conv_arithmetic") == nullptr) return;
  std::vector<Op>& ops = program.block(0).ops;
  const std::map<VarId, int> readers = lowering::reads_of(program);
  std::map<VarId, std::size_t> convolutions;
  std::set<std::size_t> gone;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    if (op.type == "conv" || op.type == "conv1d") convolutions[op.outputs[0]] = i;
    const auto made = op.type == "arithmetic" && op.attributes.find("to") == nullptr ? convolutions.find(op.inputs[0]) : convolutions.end();
    if (made == convolutions.end() || readers.at(op.inputs[0]) != std::count(op.inputs.begin(), op.inputs.end(), op.inputs[0]) ||
        program.var(op.inputs[0]).type != program.var(op.outputs[0]).type)
      continue;
    gone.insert(made->second);
    ops[i] = joined(ops[made->second], op);
  }
  std::size_t place = 0;
  std::erase_if(ops, [&](const Op&) { return gone.contains(place++); });
}

}  // namespace millrace
