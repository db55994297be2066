// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_picks.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace millrace {
namespace {

using Ints = std::vector<std::int64_t>;

/// A product whose rows are those of one place of x: [T, N, K] or [N, T, K].
struct Picked {
  VarId x = no_var;
  VarId index = no_var;
  std::int64_t axis = 0;
  std::int64_t place = 0;
};

class Joiner {
 public:
  explicit Joiner(Program& program) : program_(program), ops_(program.block(0).ops) {}

  void run() {
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].type == "gather") gathers_[ops_[i].outputs[0]] = i;
    for (std::size_t i = 0; i < ops_.size(); ++i) find(i);
    std::vector<Op> made;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const auto group = group_of_.find(i);
      if (group == group_of_.end() || !worth_it(groups_[group->second]))
        made.push_back(ops_[i]);
      else
        pick(groups_[group->second], i, made);
    }
    program_.block(0).ops = std::move(made);
  }

 private:
  struct Member {
    std::size_t op = 0;
    Picked picked;
  };
  struct Group {
    std::vector<Member> members;
    VarId product = no_var;  ///< of all rows, once it is there
  };

  std::int64_t extent(VarId var, std::int64_t axis) const { return (*program_.var(var).type.shape)[static_cast<int>(axis)]; }

  bool is_product(const Op& op) const {
    const bool gemm = op.type == "gemm" && !op.attributes.get_or("trans_a", false);
    if (!gemm && op.type != "matmul" && op.type != "matmul_bias") return false;
    if (program_.var(op.outputs[0]).type.rank() != 2 || program_.var(op.inputs[1]).type.rank() != 2) return false;
    return std::all_of(op.inputs.begin() + 1, op.inputs.end(), [&](VarId var) {
      return var == no_var || (program_.constant(var) != nullptr && (var == op.inputs[1] || program_.var(var).type.rank() <= 1));
    });
  }

  static bool same_product(const Op& one, const Op& other) {
    return one.type == other.type && std::equal(one.inputs.begin() + 1, one.inputs.end(), other.inputs.begin() + 1, other.inputs.end()) &&
           one.attributes.get_or("alpha", 1.0) == other.attributes.get_or("alpha", 1.0) &&
           one.attributes.get_or("beta", 1.0) == other.attributes.get_or("beta", 1.0) &&
           one.attributes.get_or("trans_b", false) == other.attributes.get_or("trans_b", false);
  }

  void find(std::size_t at) {
    const Op& op = ops_[at];
    if (!is_product(op)) return;
    const auto gather = gathers_.find(op.inputs[0]);
    if (gather == gathers_.end()) return;
    const Op& from = ops_[gather->second];
    Picked picked{from.inputs[0], from.inputs[1], from.attributes.get_or("axis", std::int64_t{0}), 0};
    const VarType& type = program_.var(picked.x).type;
    const Tensor* const index = program_.constant(picked.index);
    if (!type.shape || type.rank() != 3 || type.lod_depth > 0 || index == nullptr || index->rank() != 0) return;
    if (picked.axis < 0) picked.axis += 3;
    if (picked.axis > 1 || extent(picked.x, picked.axis) < 2 || extent(picked.x, 2) < 1 || extent(op.outputs[0], 1) < 1) return;
    picked.place = index->dtype() == DType::i64 ? index->to_vector<std::int64_t>()[0] : index->to_vector<std::int32_t>()[0];
    const std::int64_t places = extent(picked.x, picked.axis);
    if (picked.place < 0) picked.place += places;
    if (picked.place < 0 || picked.place >= places) return;
    const auto fits = [&](const Group& group) {
      const Member& first = group.members.front();
      return first.picked.x == picked.x && first.picked.axis == picked.axis && same_product(ops_[first.op], op);
    };
    auto group = std::find_if(groups_.begin(), groups_.end(), fits);
    if (group == groups_.end()) group = groups_.insert(groups_.end(), Group{});
    group->members.push_back({at, picked});
    group_of_[at] = static_cast<std::size_t>(group - groups_.begin());
  }

  bool worth_it(const Group& group) const {
    std::set<std::int64_t> places;
    for (const Member& member : group.members) places.insert(member.picked.place);
    const Picked& any = group.members.front().picked;
    return places.size() > 1 && 2 * std::ssize(places) >= extent(any.x, any.axis);
  }

  VarId emit(Op op, std::vector<Op>& made) {
    const std::vector<VarType> types = program_.infer(0, op);
    op.outputs = {program_.add_var(op.type, types[0])};
    made.push_back(op);
    return op.outputs[0];
  }

  void pick(Group& group, std::size_t at, std::vector<Op>& made) {
    const Op& op = ops_[at];
    const Picked& picked =
        std::find_if(group.members.begin(), group.members.end(), [&](const Member& one) { return one.op == at; })->picked;
    if (group.product == no_var) {
      Op product = op;
      product.inputs[0] = emit({"reshape", {picked.x}, {}, {{"shape", Ints{-1, extent(picked.x, 2)}}}, op.label}, made);
      const VarId rows = emit(std::move(product), made);
      Ints shape{-1, -1, extent(op.outputs[0], 1)};
      shape[static_cast<std::size_t>(picked.axis)] = extent(picked.x, picked.axis);
      group.product = emit({"reshape", {rows}, {}, {{"shape", shape}}, op.label}, made);
    }
    made.push_back({"gather", {group.product, picked.index}, op.outputs, {{"axis", picked.axis}}, op.label});
  }

  Program& program_;
  const std::vector<Op> ops_;
  std::map<VarId, std::size_t> gathers_;  // by what they give
  std::vector<Group> groups_;
  std::map<std::size_t, std::size_t> group_of_;  // by product
};

}  // namespace

void join_picks(Program& program) { Joiner(program).run(); }

}  // namespace millrace
