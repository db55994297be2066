// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_gathers.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

class Joiner {
 public:
  explicit Joiner(Program& program) : program_(program), ops_(program.block(0).ops), reads_(lowering::reads_of(program)) {}

  void run() {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const int axis = axis_of(ops_[i]);
      if (axis < 0) continue;
      const auto inner = gathers_.find(ops_[i].inputs[0]);
      if (inner == gathers_.end() || axis_of(ops_[inner->second]) == axis || reads_[ops_[i].inputs[0]] != 1) {
        gathers_[ops_[i].outputs[0]] = i;
        continue;
      }
      const Op& first = ops_[inner->second];
      const bool by_rows = axis == rank_of(ops_[i]) - 2;
      const VarId rows = by_rows ? ops_[i].inputs[1] : first.inputs[1], columns = by_rows ? first.inputs[1] : ops_[i].inputs[1];
      ops_[i] = Op{"gather_planes", {first.inputs[0], rows, columns}, ops_[i].outputs, {}, ops_[i].label};
      gone_.insert(inner->second);
    }
    std::vector<Op> left;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (!gone_.contains(i)) left.push_back(std::move(ops_[i]));
    ops_ = std::move(left);
  }

 private:
  bool has_rank(VarId var) const {
    const VarType& type = program_.var(var).type;
    return type.is_tensor() && type.lod_depth == 0 && type.shape.has_value();
  }
  int rank_of(const Op& op) const { return program_.var(op.inputs[0]).type.rank(); }
  /// One of the last two axes along which a list of places picks; −1 of another op.
  int axis_of(const Op& op) const {
    if (op.type != "gather" || !has_rank(op.inputs[0]) || !has_rank(op.inputs[1]) || program_.var(op.inputs[1]).type.rank() != 1) return -1;
    const int rank = rank_of(op);
    const auto given = static_cast<int>(op.attributes.get_or("axis", std::int64_t{0})), axis = given < 0 ? given + rank : given;
    return rank >= 2 && axis >= rank - 2 ? axis : -1;
  }

  Program& program_;
  std::vector<Op>& ops_;
  std::map<VarId, int> reads_;
  std::map<VarId, std::size_t> gathers_;
  std::set<std::size_t> gone_;
};

}  // namespace

void join_gathers(Program& program) {
  if (program.registry().find("gather_planes") != nullptr) Joiner(program).run();
}

}  // namespace millrace
