// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_attention.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/runtime/lowering/internal/arithmetic_steps.h>
#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/internal/arithmetic_names.h>

namespace millrace {
namespace {

using Ints = std::vector<std::int64_t>;

/// A condition that replaces elements, and what it leaves.
struct Replaced {
  VarId x = no_var, condition = no_var;
  double value = 0;
  bool keeps = false;
};

/// A view of a value that an op in front of the attention made.
struct View {
  VarId x = no_var;
  Ints axes;
};

/// A bias of 0 for keys up to a query and −∞ behind it: the number of keys in front of those that the first query alone sees, and the extents.
struct Causal {
  VarId offset = no_var, queries = no_var, keys = no_var;
};

/// The scores of an attention, up to its softmax.
struct Scores {
  VarId product = no_var;
  std::string steps;
  std::vector<VarId> operands;
  Causal causal;
  std::optional<Replaced> mask;
};

class Joiner {
 public:
  Joiner(Program& program, int block) : program_(program), ops_(program.block(block).ops), body_(block > 0) {}

  void run() {
    for (std::size_t i = 0; i < ops_.size(); ++i)
      for (const VarId output : ops_[i].outputs) makers_[output] = i;
    readers_ = lowering::reads_of(program_);
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].type == "matmul") join(i);
    std::size_t place = 0;
    std::erase_if(ops_, [&](const Op&) { return gone_.contains(place++); });
  }

 private:
  const VarType& type(VarId var) const { return program_.var(var).type; }
  bool plain(VarId var, DType dtype) const {
    return var != no_var && type(var).is_tensor() && type(var).lod_depth == 0 && type(var).shape && type(var).dtype == dtype;
  }
  /// The op that made `var`, where nothing else reads that.
  const Op* alone(VarId var, const char* kind) const {
    const auto found = makers_.find(var);
    return found == makers_.end() || ops_[found->second].type != kind || readers_.at(var) != 1 ? nullptr : &ops_[found->second];
  }
  const Op* maker(VarId var, const char* kind) const {
    const auto found = makers_.find(var);
    return found == makers_.end() || ops_[found->second].type != kind ? nullptr : &ops_[found->second];
  }
  VarId behind_identities(VarId var) const {
    while (const Op* same = alone(var, "identity")) {
      if (same->attributes.find("varying") != nullptr) break;
      var = same->inputs[0];
    }
    return var;
  }
  static Ints ints(const Op& op, const char* name) { return op.attributes.get_or(name, Ints{}); }

  /// The value of a constant of one element that adds no axis to `rank` of them.
  std::optional<double> number(VarId var, int rank) const {
    const Tensor* const value = var == no_var ? nullptr : program_.constant(var);
    if (value == nullptr || value->elements() != 1 || value->rank() > rank) return std::nullopt;
    return value->item();
  }

  std::optional<Replaced> replaced(VarId var) const {
    const Op* op = alone(var, "where");
    if (op == nullptr) return std::nullopt;
    const int rank = type(var).rank();
    const std::optional<double> first = number(op->inputs[1], rank), second = number(op->inputs[2], rank);
    if (first.has_value() == second.has_value()) return std::nullopt;
    return first ? Replaced{op->inputs[2], op->inputs[0], *first, false} : Replaced{op->inputs[1], op->inputs[0], *second, true};
  }

  /// Without an offset for another bias.
  Causal causal_of(VarId bias) const {
    const Op* where = maker(bias, "where");
    const Op* sees = where == nullptr ? nullptr : maker(where->inputs[0], "less_equal");
    if (sees == nullptr || number(where->inputs[1], 0) != 0.0 || std::signbit(program_.constant(where->inputs[1])->item()) ||
        number(where->inputs[2], 0) != -std::numeric_limits<double>::infinity())
      return {};
    const Op* last = maker(sees->inputs[1], "add");
    const Op* column = last == nullptr ? nullptr : maker(last->inputs[0], "unsqueeze");
    if (column == nullptr || ints(*column, "axes") != Ints{1}) return {};
    const Causal found{last->inputs[1], count_of(column->inputs[0]), count_of(sees->inputs[0])};
    return is_count(found.offset) && is_count(found.queries) && is_count(found.keys) ? found : Causal();
  }
  bool is_count(VarId var) const { return plain(var, DType::i64) && type(var).rank() == 0; }
  /// The end of the var, where that is 0, 1, 2 …
  VarId count_of(VarId var) const {
    const Op* range = maker(var, "range");
    const bool counts =
        range != nullptr && plain(var, DType::i64) && number(range->inputs[0], 0) == 0.0 && number(range->inputs[2], 0) == 1.0;
    return counts ? range->inputs[1] : no_var;
  }

  /// Reads the scores back to their product.
  std::optional<Scores> scores_of(VarId var) const {
    const int rank = type(var).rank();
    Scores found;
    std::vector<std::string> steps;  // the last first
    var = behind_identities(var);
    found.mask = replaced(var);
    if (found.mask) var = behind_identities(found.mask->x);
    while (alone(var, "matmul") == nullptr) {
      const auto made = makers_.find(var);
      if (made == makers_.end() || readers_.at(var) != 1 || type(var).rank() != rank || found.operands.size() == most_operands)
        return std::nullopt;
      const Op& op = ops_[made->second];
      const lowering::TwoSides* const function = lowering::two_sides(op.type);
      if (function == nullptr || !plain(op.inputs[0], type(var).dtype) || !plain(op.inputs[1], type(var).dtype)) return std::nullopt;
      const bool second = !leads_to_product(op.inputs[0]);
      const VarId operand = op.inputs[second ? 0 : 1];
      if (op.inputs[0] == op.inputs[1] || (second && !leads_to_product(op.inputs[1]))) return std::nullopt;
      const Causal causal = steps.empty() && !found.mask && op.type == "add" ? causal_of(operand) : Causal();
      if (causal.offset != no_var && found.causal.offset == no_var) {
        found.causal = causal;
      } else {
        steps.push_back(ops::name_of(second ? function->of_second : function->of_first));
        found.operands.push_back(operand);
      }
      var = behind_identities(op.inputs[second ? 1 : 0]);
    }
    found.product = var;
    std::reverse(steps.begin(), steps.end());
    std::reverse(found.operands.begin(), found.operands.end());
    for (const std::string& step : steps) found.steps += (found.steps.empty() ? "" : " ") + step;
    return found;
  }
  bool leads_to_product(VarId var) const {
    for (std::size_t steps = 0; steps <= most_operands; ++steps) {
      var = behind_identities(var);
      if (alone(var, "matmul") != nullptr) return true;
      const auto made = makers_.find(var);
      if (made == makers_.end() || readers_.at(var) != 1) return false;
      const Op& op = ops_[made->second];
      if (lowering::two_sides(op.type) == nullptr) return false;
      // The side that is no constant and has all axes; the first of two.
      const auto whole = [&](VarId input) { return makers_.contains(input) && readers_.at(input) == 1 && type(input) == type(var); };
      if (!whole(op.inputs[0]) && !whole(op.inputs[1])) return false;
      var = whole(op.inputs[0]) ? op.inputs[0] : op.inputs[1];
    }
    return false;
  }

  static Ints all_axes(int rank) {
    Ints axes(static_cast<std::size_t>(rank));
    std::iota(axes.begin(), axes.end(), 0);
    return axes;
  }
  /// Looks through the transpose that made a view.
  void take_transpose(View& view) const {
    const Op* turned = maker(view.x, "transpose");
    if (turned == nullptr) return;
    Ints perm = ints(*turned, "perm");
    if (perm.empty()) {
      perm = all_axes(static_cast<int>(view.axes.size()));
      std::reverse(perm.begin(), perm.end());
    }
    if (perm.size() != view.axes.size()) return;
    for (std::int64_t& axis : view.axes) {
      axis = perm[static_cast<std::size_t>(axis)];
      if (axis < 0) axis += std::ssize(perm);
    }
    view.x = turned->inputs[0];
  }
  /// Looks through the heads of `view` being repeated, as often each as heads of q share one. Those are axis 1 of the four.
  bool take_sharing(View& view) const {
    const Op* picked = maker(view.x, "gather");
    if (picked == nullptr || view.axes.size() != 4 || view.axes[1] != 1 || picked->attributes.get_or("axis", std::int64_t{0}) != 1)
      return false;
    const Tensor* const index = program_.constant(picked->inputs[1]);
    if (index == nullptr || index->dtype() != DType::i64 || index->rank() != 1 || !plain(picked->inputs[0], type(view.x).dtype))
      return false;
    const std::int64_t kept = (*type(picked->inputs[0]).shape)[1], heads = index->dim(0);
    if (kept < 1 || heads % kept != 0) return false;
    const std::vector<std::int64_t> numbers = index->to_vector<std::int64_t>();
    for (std::int64_t head = 0; head < heads; ++head)
      if (numbers[static_cast<std::size_t>(head)] != head / (heads / kept)) return false;
    view.x = picked->inputs[0];
    return true;
  }

  void join(std::size_t at) {
    const Op& outer = ops_[at];
    const VarId made = outer.outputs[0], values = outer.inputs[1];
    const DType dtype = type(made).dtype;
    const int rank = type(made).shape ? type(made).rank() : 0;
    if ((dtype != DType::f32 && dtype != DType::f64) || (rank != 3 && rank != 4) || !plain(made, dtype) || !plain(values, dtype) ||
        type(values).rank() != rank || !plain(outer.inputs[0], dtype) || type(outer.inputs[0]).rank() != rank)
      return;
    VarId weights = behind_identities(outer.inputs[0]);
    std::optional<Replaced> hidden = replaced(weights);
    if (hidden) {
      if (hidden->value != 0 || std::signbit(hidden->value)) return;
      weights = behind_identities(hidden->x);
    }
    const Op* softmax = alone(weights, "softmax");
    if (softmax == nullptr || !plain(weights, dtype) || type(weights).rank() != rank) return;
    const std::int64_t axis = softmax->attributes.get_or("axis", std::int64_t{-1});
    if ((axis != -1 && axis != rank - 1) || !plain(softmax->inputs[0], dtype)) return;
    // A loop over keys whose number is known may run as rows, for which the op has no rule.
    if (body_ && (*type(weights).shape)[rank - 1] >= 0) return;
    const std::optional<Scores> scores = scores_of(softmax->inputs[0]);
    if (!scores) return;
    const Op& inner = *alone(scores->product, "matmul");
    for (const VarId input : inner.inputs)
      if (!plain(input, dtype) || type(input).rank() != rank) return;

    View q{inner.inputs[0], all_axes(rank)}, k{inner.inputs[1], all_axes(rank)}, v{values, all_axes(rank)};
    double scale = 1;
    const auto take_scale = [&] {
      const Op* times = scale == 1 ? alone(q.x, "mul") : nullptr;
      for (const std::size_t side : {std::size_t{1}, std::size_t{0}}) {
        if (times == nullptr) return;
        const std::optional<double> factor = number(times->inputs[side], rank);
        if (!factor || *factor == 1 || program_.constant(times->inputs[1 - side]) != nullptr) continue;
        scale = *factor;
        q.x = times->inputs[1 - side];
        return;
      }
    };
    take_scale();
    if (alone(q.x, "transpose") != nullptr) take_transpose(q);
    take_scale();
    std::swap(k.axes[k.axes.size() - 2], k.axes.back());
    take_transpose(k);
    View shared_k = k, shared_v = v;
    const auto heads = [&](const View& view) { return (*type(view.x).shape)[static_cast<int>(view.axes[1])]; };
    const bool shares = take_sharing(shared_k) && take_sharing(shared_v) && heads(shared_k) == heads(shared_v) && heads(k) == heads(v) &&
                        plain(q.x, dtype) && type(q.x).rank() == rank && heads(q) == heads(k);
    if (shares) {
      k = shared_k;
      v = shared_v;
    }
    take_transpose(v);
    for (const VarId input : {q.x, k.x, v.x})
      if (!plain(input, dtype) || type(input).rank() != rank) return;

    Attributes attributes{{"q_axes", q.axes}, {"k_axes", k.axes}, {"v_axes", v.axes}, {"out_axes", all_axes(rank)}};
    if (scale != 1) attributes.set("scale", scale);
    if (shares) attributes.set("shares_heads", true);
    if (!scores->steps.empty()) attributes.set("steps", scores->steps);
    if (scores->mask) {
      attributes.set("mask_value", scores->mask->value);
      attributes.set("mask_keeps", scores->mask->keeps);
    }
    if (hidden) attributes.set("hidden_keeps", hidden->keeps);
    std::vector<VarId> inputs{q.x,
                              k.x,
                              v.x,
                              scores->causal.offset,
                              scores->causal.queries,
                              scores->causal.keys,
                              scores->mask ? scores->mask->condition : no_var,
                              hidden ? hidden->condition : no_var};
    inputs.insert(inputs.end(), scores->operands.begin(), scores->operands.end());
    replace(at, Op{"attention", std::move(inputs), outer.outputs, std::move(attributes), outer.label});
    turn_result(at);
  }

  /// The result in the order in which the one op that reads it wants it.
  void turn_result(std::size_t at) {
    const VarId made = ops_[at].outputs[0];
    if (readers_[made] != 1) return;
    const auto reader =
        std::find_if(ops_.begin(), ops_.end(), [&](const Op& op) { return op.type == "transpose" && op.inputs[0] == made; });
    if (reader == ops_.end()) return;
    View view{made, all_axes(type(made).rank())};
    View turned{reader->outputs[0], view.axes};
    take_transpose(turned);
    if (turned.axes.back() + 1 != std::ssize(turned.axes)) return;
    Op whole{"attention", ops_[at].inputs, reader->outputs, ops_[at].attributes, reader->label};
    whole.attributes.set("out_axes", turned.axes);
    replace(static_cast<std::size_t>(reader - ops_.begin()), std::move(whole));
  }

  /// Puts `op` in the place of another one. Ops that made what nothing reads any more go.
  void replace(std::size_t at, Op op) {
    for (const VarId input : op.inputs) ++readers_[input];
    std::vector<VarId> released = std::exchange(ops_[at], std::move(op)).inputs;
    while (!released.empty()) {
      const VarId var = released.back();
      released.pop_back();
      const auto made = makers_.find(var);
      if (--readers_[var] > 0 || made == makers_.end()) continue;
      const Op& maker = ops_[made->second];
      const OpDef& def = program_.registry().at(maker.type);
      const bool unread = std::all_of(maker.outputs.begin(), maker.outputs.end(), [&](VarId output) { return readers_[output] == 0; });
      if (!unread || !def.pure || !def.prepare || def.stores || !gone_.insert(made->second).second) continue;
      released.insert(released.end(), maker.inputs.begin(), maker.inputs.end());
    }
  }

  Program& program_;
  std::vector<Op>& ops_;
  std::map<VarId, std::size_t> makers_;
  bool body_;
  std::map<VarId, int> readers_;
  std::set<std::size_t> gone_;
};

}  // namespace

void join_attention(Program& program) {
  if (program.registry().find("attention") == nullptr) return;
  for (int block = 0; std::cmp_less(block, program.blocks().size()); ++block) Joiner(program, block).run();
}

}  // namespace millrace
