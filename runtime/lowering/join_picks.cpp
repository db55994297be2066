// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_picks.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/internal/append_op.h>

namespace millrace {
namespace {

using Ints = std::vector<std::int64_t>;

/// Rows of one place of x: [T, N, K] or [N, T, K].
struct Picked {
  VarId x = no_var;
  std::int64_t axis = 0;
  std::int64_t place = 0;
};

class Joiner {
 public:
  explicit Joiner(Program& program) : program_(program), ops_(program.block(0).ops) {}

  void run() {
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].type == "gather" || ops_[i].type == "squeeze" || ops_[i].type == "slice" || ops_[i].type == "split")
        for (const VarId made : ops_[i].outputs) makers_[made] = i;
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

  const Op* maker(VarId var, const char* type) const {
    const auto found = makers_.find(var);
    return found == makers_.end() || ops_[found->second].type != type ? nullptr : &ops_[found->second];
  }
  /// An axis or a place counted from 0: of rank 3, or of an extent.
  static std::int64_t counted(std::int64_t number, std::int64_t of) { return number < 0 ? number + of : number; }

  /// A place by its number.
  std::optional<Picked> gathered(VarId rows) const {
    const Op* const from = maker(rows, "gather");
    const Tensor* const index = from == nullptr ? nullptr : program_.constant(from->inputs[1]);
    if (index == nullptr || index->rank() != 0 || program_.var(from->inputs[0]).type.rank() != 3) return std::nullopt;
    const std::int64_t axis = counted(from->attributes.get_or("axis", std::int64_t{0}), 3);
    const std::int64_t place = index->dtype() == DType::i64 ? index->to_vector<std::int64_t>()[0] : index->to_vector<std::int32_t>()[0];
    return Picked{from->inputs[0], axis, counted(place, extent(from->inputs[0], axis))};
  }

  /// A piece of one place that a split or a slice gives, and whose axis a squeeze removes.
  std::optional<Picked> taken_apart(VarId rows) const {
    const Op* const squeezed = maker(rows, "squeeze");
    const Ints axes = squeezed == nullptr ? Ints{} : squeezed->attributes.get_or("axes", Ints{});
    if (axes.size() != 1) return std::nullopt;
    const VarId piece = squeezed->inputs[0];
    const std::int64_t axis = counted(axes[0], 3);
    if (program_.var(piece).type.rank() != 3 || extent(piece, axis) != 1) return std::nullopt;
    if (const Op* const split = maker(piece, "split")) {
      if (counted(split->attributes.get<std::int64_t>("axis"), 3) != axis) return std::nullopt;
      std::int64_t place = 0;
      for (std::size_t i = 0; split->outputs[i] != piece; ++i) place += split->attributes.get<Ints>("sizes")[i];
      return Picked{split->inputs[0], axis, place};
    }
    const Op* const slice = maker(piece, "slice");
    if (slice == nullptr || program_.var(slice->inputs[0]).type.rank() != 3) return std::nullopt;
    const Ints starts = slice->attributes.get<Ints>("starts"), along = slice->attributes.get_or("axes", Ints{});
    if (starts.size() != 1 || along.size() != 1 || counted(along[0], 3) != axis) return std::nullopt;
    return Picked{slice->inputs[0], axis, counted(starts[0], extent(slice->inputs[0], axis))};
  }

  void find(std::size_t at) {
    const Op& op = ops_[at];
    if (!is_product(op)) return;
    std::optional<Picked> found = gathered(op.inputs[0]);
    if (!found) found = taken_apart(op.inputs[0]);
    if (!found) return;
    const Picked picked = *found;
    const VarType& type = program_.var(picked.x).type;
    if (!type.shape || type.rank() != 3 || type.lod_depth > 0 || picked.axis > 1) return;
    const std::int64_t places = extent(picked.x, picked.axis);
    if (places < 2 || extent(picked.x, 2) < 1 || extent(op.outputs[0], 1) < 1 || picked.place < 0 || picked.place >= places) return;
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

  VarId emit(Op op, std::vector<Op>& made) { return lowering::append_op(program_, std::move(op), made); }

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
    const VarId rows = emit({"slice",
                             {group.product},
                             {},
                             {{"starts", Ints{picked.place}}, {"ends", Ints{picked.place + 1}}, {"axes", Ints{picked.axis}}},
                             op.label},
                            made);
    made.push_back({"squeeze", {rows}, op.outputs, {{"axes", Ints{picked.axis}}}, op.label});
  }

  Program& program_;
  const std::vector<Op> ops_;
  std::map<VarId, std::size_t> makers_;  // of ops that pick rows, by what they give
  std::vector<Group> groups_;
  std::map<std::size_t, std::size_t> group_of_;  // by product
};

}  // namespace

void join_picks(Program& program) { Joiner(program).run(); }

}  // namespace millrace
