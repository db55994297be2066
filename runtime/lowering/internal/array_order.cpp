// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/internal/array_order.h>

#include <algorithm>

namespace millrace::lowering {

std::optional<VarId> order_of(const Program& program, VarId array) {
  for (const Op& op : program.block(program.var(array).block).ops) {
    if (std::find(op.outputs.begin(), op.outputs.end(), array) == op.outputs.end()) continue;
    if (op.type == "unpack") return op.outputs[1];
    if (op.type == "reorder_steps") return op.inputs[2];
    if (op.type == "tensor_array" && op.inputs.size() > 1 && op.inputs[1] != no_var) return op.inputs[1];
  }
  return std::nullopt;
}

}  // namespace millrace::lowering
