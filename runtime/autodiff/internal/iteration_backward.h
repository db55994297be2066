// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/autodiff/internal/gradient_sums.h>
#include <millrace/runtime/autodiff/internal/recurrent_loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/op_registry.h>

/// One iteration of the backward of a recurrence: its ops, gone through in reverse, whatever loop runs them.
namespace millrace::autodiff {

/// Values and gradients in an iteration of the backward loop, or of a rehearsal of it.
class Stage {
 public:
  Stage(Program& program, const RecurrentLoop& loop, bool recompute) : staged_(program), loop_(loop), recompute_(recompute) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage() = default;
  /// A value of the forward iteration: one that is kept, or made again of such values.
  VarId value(VarId forward) {
    return find(forward, values_, [this](VarId var) { return held(var); });
  }
  /// The forward value over the rows of all iterations, behind the loop.
  VarId flat_value(VarId forward) {
    return find(forward, flat_values_, [this](VarId var) { return flat_held(var); });
  }
  /// This iteration's gradient of what the forward iteration wrote to the array; `no_var`: none.
  virtual VarId incoming(VarId array) = 0;
  /// The gradient of a state that the backward iteration before made.
  virtual VarId memory(std::size_t state) = 0;
  virtual void update(std::size_t state, VarId gradient) = 0;
  /// A sum over the iterations of each sequence.
  virtual void accumulate(VarId of, VarId gradient) = 0;
  /// Rows that are looked at behind the loop; the number of the output.
  virtual std::size_t output(VarId rows) = 0;
  /// `gradient` of a state before the iteration, without what is cut.
  virtual VarId cut(VarId gradient) = 0;

 protected:
  virtual VarId held(VarId forward) = 0;
  virtual VarId flat_held(VarId forward) = 0;

  Program& staged_;
  const RecurrentLoop& loop_;

 private:
  template <class Held>
  VarId find(VarId forward, std::map<VarId, VarId>& values, const Held& take) {
    if (forward == no_var || staged_.var(forward).block != loop_.body) return forward;
    if (const auto known = values.find(forward); known != values.end()) return known->second;
    if (const Tensor* number = staged_.constant(forward)) return values[forward] = build::constant(*number).id();
    const std::optional<Op> op = recompute_ || !can_be_kept(forward) ? maker(forward) : std::nullopt;
    if (!op) return values[forward] = take(forward);
    Op again{op->type, {}, {}, op->attributes, op->label};
    for (const VarId input : op->inputs) again.inputs.push_back(find(input, values, take));
    const std::vector<VarId> made = emit(staged_, std::move(again));
    for (std::size_t i = 0; i < made.size(); ++i) values[op->outputs[i]] = made[i];
    return values.at(forward);
  }
  /// Whether slots of the forward loop can hold the value; one of another dtype is made again under every policy.
  bool can_be_kept(VarId forward) const {
    const DType dtype = staged_.var(forward).type.dtype;
    return dtype == loop_.dtype || dtype == DType::boolean || dtype == DType::bf16;
  }
  /// The op that makes a value of the iteration's own; none for what is read or shrunk.
  std::optional<Op> maker(VarId forward) const {
    for (const Op& op : staged_.block(loop_.body).ops) {
      if (std::find(op.outputs.begin(), op.outputs.end(), forward) == op.outputs.end()) continue;
      const OpDef& def = staged_.registry().at(op.type);
      if (op.type == "shrink" || !def.prepare || !def.pure) return std::nullopt;
      return op;
    }
    return std::nullopt;
  }

  const bool recompute_;
  std::map<VarId, VarId> values_;
  std::map<VarId, VarId> flat_values_;
};

struct Deferred {
  Op op;
  std::map<VarId, std::size_t> gradients;  ///< output of the op → output of the backward loop
};

/// Goes through the ops of the body in reverse.
class BodyWalk {
 public:
  BodyWalk(Program& program, const std::set<VarId>& active, const RecurrentLoop& loop, const std::vector<bool>& live, Stage& stage)
      : program_(program),
        loop_(loop),
        live_(live),
        stage_(stage),
        where_(" in the loop of block " + std::to_string(loop.body)),
        sums_(program, active, [&stage](VarId var) { return stage.value(var); }, where_) {}

  void run() {
    const std::vector<Op> ops = program_.block(loop_.body).ops;
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) visit(*op);
    for (std::size_t i = 0; i < loop_.states.size(); ++i) {
      const VarId total = sum(state_terms_[i]);
      reached.push_back(total != no_var);
      if (live_[i] && total != no_var) stage_.update(i, stage_.cut(total));
    }
    for (auto& [var, terms] : static_terms_) stage_.accumulate(var, sum(terms));
  }

  std::vector<bool> reached;                          ///< by state: whether a gradient gets to it
  std::vector<std::pair<VarId, std::size_t>> inputs;  ///< array that the loop reads, output of the backward loop
  std::vector<Deferred> deferred;
  std::vector<std::pair<VarId, std::size_t>>
      row_sums;  ///< var around the loop, output of the backward loop whose rows add up to its gradient

 private:
  bool outside(VarId var) const { return program_.var(var).block != loop_.body; }

  VarId sum(const std::vector<VarId>& terms) {
    VarId total = no_var;
    for (const VarId term : terms) total = total == no_var ? term : emit1(program_, "add", {total, term});
    return total;
  }

  void visit(const Op& op) {
    if (op.type == "break_if" || op.type == "constant") return;
    if (op.type == "tensor_array_write") return visit_write(op);
    if (op.type == "tensor_array_read") return visit_read(op);
    if (op.type == "shrink") return visit_shrink(op);
    visit_rows(op);
  }

  void visit_write(const Op& op) {
    if (!sums_.active(op.inputs[2])) return;
    if (outside(op.inputs[2]))  // whose gradient has no rows of its own
      refuse_recurrence("'" + program_.var(op.inputs[2]).name + "' is made around the loop and written in each iteration");
    sums_.add(op.inputs[2], stage_.incoming(op.inputs[0]));
    const auto state = loop_.state_of(op.inputs[0]);
    if (state && live_[*state]) sums_.add(op.inputs[2], stage_.memory(*state));
  }

  void visit_read(const Op& op) {
    const VarId total = sums_.sum(op.outputs[0]);
    if (total == no_var) return;
    const auto lag = loop_.lag.find(op.outputs[0]);
    if (lag == loop_.lag.end()) {
      if (sums_.active(op.inputs[0])) inputs.emplace_back(op.inputs[0], stage_.output(total));
    } else if (lag->second == 0) {
      sums_.add(loop_.written.at(op.inputs[0]), total);
    } else {
      state_terms_[*loop_.state_of(op.inputs[0])].push_back(total);
    }
  }

  /// The rows that live in this iteration of the backward loop are those that live in the iteration before it.
  void visit_shrink(const Op& op) {
    const VarId total = sums_.sum(op.outputs[0]);
    if (total == no_var || !sums_.active(op.inputs[0])) return;
    if (outside(op.inputs[0]))
      static_terms_[op.inputs[0]].push_back(total);
    else
      sums_.add(op.inputs[0], total);
  }

  void visit_rows(const Op& op) {
    bool any = false;
    for (const VarId output : op.outputs) any = any || sums_.has(output);
    if (!any || !passes_gradient(program_, op)) return;
    expect_row_wise(op);
    bool weights = false;
    for (const VarId input : op.inputs) weights = weights || is_weight(input);
    if (weights && visit_with_row_sums(op)) return;
    if (weights) {
      Deferred later{op, {}};
      for (const VarId output : op.outputs)
        if (sums_.has(output)) later.gradients[output] = stage_.output(sums_.sum(output));
      deferred.push_back(std::move(later));
    }
    sums_.visit(op, [this](VarId input) { return !outside(input); });
  }

  bool is_weight(VarId input) const { return input != no_var && outside(input) && sums_.active(input); }

  /// Gradients of vectors that all rows share are sums over rows. The rows are computed in the loop, by the rule that gives the gradients of the
  /// op's rows, and summed behind it. False, without an effect that anything reads, for other weights, and for a rule that ends in something else
  /// than such sums.
  bool visit_with_row_sums(const Op& op) {
    for (const VarId input : op.inputs)
      if (is_weight(input) && program_.var(input).type.rank() != 1) return false;
    const int block = build::Guard::current().block();
    const std::size_t begin = program_.block(block).ops.size();
    const std::vector<VarId> found = GradientSums::call_rule(
        program_, op, [&](std::size_t input) { return sums_.active(op.inputs[input]); }, [this](VarId var) { return stage_.value(var); },
        [this](VarId output) { return sums_.sum_with_lod(output); }, where_);
    std::vector<RowSum> made;
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i] != no_var && is_weight(op.inputs[i])) made.push_back({op.inputs[i], found[i]});
    if (!std::all_of(made.begin(), made.end(), [&](RowSum& each) { return take_row_sum(block, begin, each); })) return false;
    for (const RowSum& each : made) row_sums.push_back({each.var, stage_.output(each.rows)});
    for (std::size_t i = 0; i < found.size(); ++i)
      if (op.inputs[i] != no_var && !outside(op.inputs[i])) sums_.add(op.inputs[i], found[i]);
    return true;
  }

  struct RowSum {
    VarId var = no_var;
    VarId sum = no_var;
    VarId rows = no_var;
  };
  /// Finds the rows that the sum is made of, and takes its op out of the block.
  bool take_row_sum(int block, std::size_t begin, RowSum& each) {
    std::vector<Op>& ops = program_.block(block).ops;
    const auto sum = std::find_if(ops.begin() + static_cast<std::ptrdiff_t>(begin), ops.end(),
                                  [&](const Op& op) { return !op.outputs.empty() && op.outputs[0] == each.sum; });
    if (sum == ops.end() || sum->type != "reduce" || sum->attributes.get<std::string>("kind") != "sum" ||
        sum->attributes.get<std::vector<std::int64_t>>("axes") != std::vector<std::int64_t>{0} || sum->attributes.get_or("keepdims", false))
      return false;
    each.rows = sum->inputs[0];
    ops.erase(sum);
    return true;
  }

  void expect_row_wise(const Op& op) const {
    const OpDef& def = program_.registry().at(op.type);
    std::vector<int> axes;
    for (const VarId input : op.inputs) {
      const bool rows = input != no_var && loop_.rows.contains(input);
      axes.push_back(rows ? 0 : -1);
      const VarType* type = input == no_var ? nullptr : &program_.var(input).type;
      const bool open = type != nullptr && !rows && program_.constant(input) == nullptr && type->is_tensor() &&
                        (!type->shape || (type->rank() > 0 && (*type->shape)[0] == DDim::unknown));
      // A dense tensor of rows beside rows would be taken for a weight of all rows.
      const bool beside = loop_.dense && type != nullptr && !rows && program_.constant(input) == nullptr && type->is_tensor() &&
                          type->shape && type->rank() > 0 && type->rank() >= program_.var(op.outputs[0]).type.rank() &&
                          (*type->shape)[0] != 1 && op.type != "matmul" && op.type != "gemm";
      if (beside) refuse_recurrence("op " + op.type + " reads '" + program_.var(input).name + "', which may have rows of its own");
      if (open) refuse_recurrence("op " + op.type + " reads '" + program_.var(input).name + "', which may have rows of its own");
    }
    if (!def.follow_rows) refuse_recurrence("op " + op.type + " is not known to be row-wise");
    const std::vector<int> followed = def.follow_rows(InferContext(program_, op, loop_.body), axes);
    if (std::any_of(followed.begin(), followed.end(), [](int axis) { return axis != 0; }))
      refuse_recurrence("op " + op.type + " is not row-wise");
  }

  Program& program_;
  const RecurrentLoop& loop_;
  const std::vector<bool>& live_;
  Stage& stage_;
  const std::string where_;
  GradientSums sums_;
  std::map<std::size_t, std::vector<VarId>> state_terms_;
  std::map<VarId, std::vector<VarId>> static_terms_;
};

/// The gradients of an op's weights over the rows of all iterations, added to `made` by var. `value` and `gradient` give what the op read and the
/// gradients of its outputs over those rows.
void add_weights(Program& program, const std::set<VarId>& active, const Deferred& later, int body, const std::function<VarId(VarId)>& value,
                 const std::function<VarId(std::size_t)>& gradient_of, std::vector<std::pair<VarId, VarId>>& made);

}  // namespace millrace::autodiff
