// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_gathers.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
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

/// A sum of weighted gathers.
struct WeightedSum {
  struct Term {
    VarId places = no_var, weights = no_var;
  };
  VarId x = no_var;
  int axis = 0;
  std::vector<Term> terms;
  std::set<std::size_t> ops;  ///< that are part of it
};

class SumJoiner {
 public:
  explicit SumJoiner(Program& program) : program_(program), ops_(program.block(0).ops), reads_(lowering::reads_of(program)) {}

  void run() {
    std::map<VarId, WeightedSum> sums;  // and single terms
    std::map<VarId, std::size_t> whole;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      for (const VarId output : ops_[i].outputs) makers_[output] = i;
      std::optional<WeightedSum> made;
      if (ops_[i].type == "mul")
        made = term(i);
      else if (ops_[i].type == "add")
        made = sum(i, sums);
      if (!made) continue;
      for (const VarId input : ops_[i].inputs) whole.erase(input);
      if (made->terms.size() > 1) whole[ops_[i].outputs[0]] = i;
      sums[ops_[i].outputs[0]] = std::move(*made);
    }
    if (whole.empty()) return;
    std::set<std::size_t> gone;
    for (const auto& [out, at] : whole) {
      const WeightedSum& of = sums.at(out);
      Op op{"gather_sum", {of.x}, {out}, {{"axis", std::int64_t{of.axis}}}, ops_[at].label};
      for (const WeightedSum::Term& each : of.terms) op.inputs.insert(op.inputs.end(), {each.places, each.weights});
      gone.insert(of.ops.begin(), of.ops.end());
      gone.erase(at);
      ops_[at] = std::move(op);
    }
    std::vector<Op> left;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (!gone.contains(i)) left.push_back(std::move(ops_[i]));
    ops_ = std::move(left);
  }

 private:
  const VarType& type(VarId var) const { return program_.var(var).type; }
  bool is_plain(VarId var) const { return type(var).is_tensor() && type(var).lod_depth == 0 && type(var).shape.has_value(); }
  bool is_read_once(VarId var) const { return reads_.at(var) == 1; }

  /// A gather times weights.
  std::optional<WeightedSum> term(std::size_t at) const {
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      const VarId picked = ops_[at].inputs[side], weights = ops_[at].inputs[1 - side];
      const auto found = makers_.find(picked);
      if (found == makers_.end() || ops_[found->second].type != "gather" || !is_read_once(picked) || picked == weights) continue;
      const Op& gather = ops_[found->second];
      const VarId x = gather.inputs[0], places = gather.inputs[1];
      if (!is_plain(x) || !is_plain(places) || type(places).rank() != 1 || !is_plain(weights) || type(weights).dtype != type(x).dtype ||
          (type(x).dtype != DType::f32 && type(x).dtype != DType::f64))
        continue;
      const auto given = static_cast<int>(gather.attributes.get_or("axis", std::int64_t{0}));
      const int axis = given < 0 ? given + type(x).rank() : given;
      if (!lies_along(type(weights), type(x).rank(), axis, (*type(places).shape)[0])) continue;
      return WeightedSum{x, axis, {{places, weights}}, {found->second, at}};
    }
    return std::nullopt;
  }
  /// Whether weights have as many elements as there are places, all along the axis.
  static bool lies_along(const VarType& weights, int rank, int axis, std::int64_t places) {
    const int first = rank - weights.rank();
    if (first < 0 || axis < first) return false;
    for (int i = first; i < rank; ++i) {
      const std::int64_t extent = (*weights.shape)[i - first];
      if (i == axis ? extent != places || (extent == DDim::unknown && first > 0) : extent != 1) return false;
    }
    return true;
  }

  std::optional<WeightedSum> sum(std::size_t at, const std::map<VarId, WeightedSum>& sums) const {
    const Op& op = ops_[at];
    const auto a = sums.find(op.inputs[0]), b = sums.find(op.inputs[1]);
    if (a == sums.end() || b == sums.end() || !is_read_once(op.inputs[0]) || !is_read_once(op.inputs[1])) return std::nullopt;
    if (b->second.terms.size() != 1) return std::nullopt;
    WeightedSum made = a->second;
    const WeightedSum& more = b->second;
    const auto places = [&](const WeightedSum& of) { return (*type(of.terms[0].places).shape)[0]; };
    if (made.x != more.x || made.axis != more.axis || places(made) != places(more) || made.terms.size() >= most_terms) return std::nullopt;
    made.terms.push_back(more.terms[0]);
    made.ops.insert(more.ops.begin(), more.ops.end());
    made.ops.insert(at);
    return made;
  }

  static constexpr std::size_t most_terms = 8;
  Program& program_;
  std::vector<Op>& ops_;
  const std::map<VarId, int> reads_;
  std::map<VarId, std::size_t> makers_;
};

}  // namespace

void join_weighted_gathers(Program& program) {
  if (program.registry().find("gather_sum") != nullptr) SumJoiner(program).run();
}

void join_gathers(Program& program) {
  if (program.registry().find("gather_planes") != nullptr) Joiner(program).run();
}

}  // namespace millrace
