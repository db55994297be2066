// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_integers.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

class Joiner {
 public:
  explicit Joiner(Program& program) : program_(program), ops_(program.block(0).ops) {}

  void run() {
    std::map<VarId, int> readers;
    for (const Program::Port& port : program_.outputs()) ++readers[port.var];
    for (const Block& block : program_.blocks()) {
      for (const VarId result : block.results) ++readers[result];
      for (const Op& op : block.ops)
        for (const VarId input : op.inputs) ++readers[input];
    }
    std::map<VarId, std::size_t> sums;
    std::set<std::size_t> gone;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const Op& op = ops_[i];
      if (is_known(op) && readers[op.outputs[0]] == 1) sums[op.outputs[0]] = i;
      const auto made = op.type == "arithmetic" ? sums.find(op.inputs[0]) : sums.end();
      if (made == sums.end() || !takes(op, ops_[made->second])) continue;
      gone.insert(made->second);
      join(ops_[made->second], ops_[i]);
    }
    std::size_t place = 0;
    std::erase_if(ops_, [&](const Op&) { return gone.contains(place++); });
  }

 private:
  const VarType& type(VarId var) const { return program_.var(var).type; }

  bool is_known(const Op& op) const {
    return op.type == "matmul_integer" && program_.constant(op.inputs[2]) != nullptr && type(op.inputs[1]).is_scalar() &&
           type(op.inputs[1]).rank() == 0 && type(op.outputs[0]).shape;
  }

  /// Whether each operand stands for all sums or for those of a column, and none stretches the sums.
  bool takes(const Op& arithmetic, const Op& product) const {
    const std::int64_t columns = program_.constant(product.inputs[2])->dim(1);
    const int rank = type(product.outputs[0]).rank();
    if (type(arithmetic.outputs[0]).shape != type(product.outputs[0]).shape) return false;
    return std::all_of(arithmetic.inputs.begin() + 1, arithmetic.inputs.end(), [&](VarId operand) {
      const std::optional<DDim>& dims = type(operand).shape;
      if (!dims || dims->rank() > rank) return false;
      for (int axis = 0; axis < dims->rank(); ++axis)
        if ((*dims)[axis] != 1 && (axis + 1 < dims->rank() || (*dims)[axis] != columns)) return false;
      return dims->rank() <= 1 || dims->elements() == 1;
    });
  }

  static void join(const Op& product, Op& arithmetic) {
    std::vector<VarId> inputs = product.inputs;
    inputs.resize(5, no_var);
    inputs.insert(inputs.end(), arithmetic.inputs.begin() + 1, arithmetic.inputs.end());
    arithmetic = Op{"integer_arithmetic", std::move(inputs), arithmetic.outputs, arithmetic.attributes, product.label};
  }

  Program& program_;
  std::vector<Op>& ops_;
};

}  // namespace

void join_integers(Program& program) {
  if (program.registry().find("integer_arithmetic") != nullptr) Joiner(program).run();
}

}  // namespace millrace
