// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/recurrence_backward.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/autodiff/internal/gradient_sums.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/lowering/internal/loop_place.h>
#include <millrace/runtime/lowering/keep_values.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::autodiff {
namespace {

using build::Var;

[[noreturn]] void refuse(const std::string& why) { throw UnsupportedError("append_backward: " + why); }

// ---- The forward loop ----

/// The forward loop as its backward sees it.
struct RaggedLoop {
  struct State {
    VarId array = no_var;
    VarId boot = no_var;
  };
  int body = 0;
  int block = 0;
  std::int64_t level = 0;
  bool reverse = false;            ///< the forward loop goes from the ends of its sequences to their beginnings
  std::map<VarId, VarId> sources;  ///< array that the loop reads alone → its rows, packed, where they are at hand
  std::map<VarId, VarId> orders;   ///< of those arrays
  std::vector<State> states;       ///< arrays that the loop reads one iteration back
  std::set<VarId> rows;            ///< vars of the body with rows
  std::map<VarId, VarId> written;  ///< array → value that an iteration writes
  std::map<VarId, int> lag;        ///< output of a read of such an array → iterations back
  std::map<VarId, VarId> statics;  ///< outer var that the loop shrinks → var of one row for each sequence, in the caller's order
};

class RaggedReader {
 public:
  RaggedReader(Program& program, int body) : program_(program) {
    loop_.body = body;
    std::tie(loop_.block, place_) = lowering::find_loop(program, body);
  }

  RaggedLoop read() {
    const LoopForm form = find_loop_form(program_, loop_.block, program_.block(loop_.block).ops[place_]);
    const Op loop = program_.block(loop_.block).ops[place_];
    loop_.rows = lowering::row_vars(program_, loop_.body, form);
    for (const LoopForm::Carried& carried : form.carried)
      if (!carried.counter) refuse("a loop over ragged rows carries a tensor");
    if (loop.attributes.get_or<std::int64_t>("max_trips", -1) >= 0) refuse("the loop has a trip limit");
    for (const Op& op : program_.block(loop_.body).ops)
      if (op.type == "tensor_array_write") read_write(loop, op);
    for (const Op& op : program_.block(loop_.body).ops) {
      if (op.type == "tensor_array_read") read_read(loop, op);
      if (op.type == "shrink" && outside(op.inputs[0])) read_static(op.inputs[0]);
    }
    check_all_steps(form);
    return std::move(loop_);
  }

 private:
  bool outside(VarId var) const { return program_.var(var).block != loop_.body; }
  const std::string& name(VarId var) const { return program_.var(var).name; }

  const Op& maker(VarId var) const {
    for (const Op& op : program_.block(program_.var(var).block).ops)
      if (std::find(op.outputs.begin(), op.outputs.end(), var) != op.outputs.end()) return op;
    refuse("'" + name(var) + "' is handed in");
  }

  /// What `index` is more than the number of iterations before.
  std::int64_t offset(const Op& loop, VarId index) const {
    const Block& body = program_.block(loop_.body);
    for (std::size_t i = 0; i < body.params.size(); ++i) {
      if (body.params[i] != index) continue;
      const Tensor* first = program_.constant(loop.inputs[i]);
      if (first == nullptr || stride(body, i) != 1) break;
      return first->item_int();
    }
    if (!outside(index)) {
      const Op& op = maker(index);
      const auto number = [&](std::size_t input) { return program_.constant(op.inputs.at(input)); };
      if (op.type == "identity") return offset(loop, op.inputs[0]);
      if (op.type == "add" && number(1) != nullptr) return offset(loop, op.inputs[0]) + number(1)->item_int();
      if (op.type == "add" && number(0) != nullptr) return offset(loop, op.inputs[1]) + number(0)->item_int();
      if (op.type == "sub" && number(1) != nullptr) return offset(loop, op.inputs[0]) - number(1)->item_int();
    }
    refuse("'" + name(index) + "' is no count of iterations from 0");
  }
  std::int64_t stride(const Block& body, std::size_t param) const {
    const VarId next = body.results[param];
    if (outside(next) || next == body.params[param]) return 0;
    const Op& op = maker(next);
    if (op.type == "identity" && !outside(op.inputs[0])) return stride_of(maker(op.inputs[0]), body.params[param]);
    return stride_of(op, body.params[param]);
  }
  std::int64_t stride_of(const Op& op, VarId param) const {
    if (op.type != "add" && op.type != "sub") return 0;
    for (const std::size_t at : {std::size_t{0}, std::size_t{1}}) {
      const Tensor* by = program_.constant(op.inputs[1 - at]);
      if (op.inputs[at] == param && by != nullptr && by->elements() == 1)
        return op.type == "add" ? by->item_int() : at == 0 ? -by->item_int() : 0;
    }
    return 0;
  }

  void read_write(const Op& loop, const Op& op) {
    if (offset(loop, op.inputs[1]) != 0) refuse("slots of '" + name(op.inputs[0]) + "' are not numbered as the iterations are");
    loop_.written[op.inputs[0]] = op.inputs[2];
  }

  void read_read(const Op& loop, const Op& op) {
    const VarId array = op.inputs[0];
    const VarId boot = op.inputs.size() > 2 ? op.inputs[2] : no_var;
    const std::int64_t at = offset(loop, op.inputs[1]);
    if (!loop_.written.contains(array)) {
      if (at != 0 || boot != no_var) refuse("'" + name(array) + "' is read at other slots than those of the iteration");
      read_source(array);
      return;
    }
    loop_.lag[op.outputs[0]] = static_cast<int>(-at);
    if (at == 0) return;
    if (at != -1 || boot == no_var) refuse("'" + name(array) + "' is read further back, or without a boot");
    for (const RaggedLoop::State& state : loop_.states) {
      if (state.array == array && state.boot != boot) refuse("'" + name(array) + "' has two boots");
      if (state.array == array) return;
    }
    loop_.states.push_back({array, boot});
  }

  void read_source(VarId array) {
    const Op& op = maker(array);
    const VarType& type = program_.var(array).type;
    if (!type.ordered || type.lod_depth > 0) refuse("'" + name(array) + "' holds no rows of ragged sequences");
    const bool unpacks = op.type == "unpack";
    const VarId order = unpacks ? op.outputs[1] : op.inputs.at(op.type == "reorder_steps" ? 2 : 1);
    const Op& unpack = unpacks ? op : maker(order);
    if (unpack.type != "unpack") refuse("the order of '" + name(array) + "' is handed in");
    const std::int64_t level = unpack.attributes.get_or("level", std::int64_t{0});
    const bool reverse = unpack.attributes.get_or("reverse", false);
    if (!loop_.sources.empty() && (level != loop_.level || reverse != loop_.reverse)) refuse("the loop reads sequences in two orders");
    loop_.level = level;
    loop_.reverse = reverse;
    if (first_ == no_var) first_ = array;
    loop_.sources.emplace(array, unpacks ? op.inputs[0] : no_var);
    loop_.orders[array] = order;
  }

  void read_static(VarId var) {
    const Op& op = maker(var);
    const VarType& type = program_.var(var).type;
    if (op.type != "reorder" || type.lod_depth > 0) refuse("'" + name(var) + "' has no row for each sequence");
    loop_.statics[var] = op.inputs[0];
  }

  /// The loop goes through all steps of the sequences.
  void check_all_steps(const LoopForm& form) {
    if (first_ == no_var) refuse("the loop reads no ragged rows");
    const lowering::OuterNumbers numbers(program_, loop_.block, program_.block(loop_.block).ops[place_]);
    const auto steps = numbers.size_of(first_);
    const LoopForm::Index& left = form.stop.left;
    const bool all = steps && steps->roots.number == 0 && left.roots.number == 0 && (left.stride == 1 || left.stride == -1) &&
                     left.roots.terms.size() == steps->roots.terms.size() &&
                     std::equal(left.roots.terms.begin(), left.roots.terms.end(), steps->roots.terms.begin(),
                                [&](const auto& a, const auto& b) { return a.var == b.var && a.times == -left.stride * b.times; });
    if (!all) refuse("the loop may end before its sequences do");
  }

  Program& program_;
  std::size_t place_ = 0;
  RaggedLoop loop_;
  VarId first_ = no_var;
};

// ---- The backward loop ----

/// Values and gradients in an iteration of the backward loop, or of a rehearsal of it.
class Stage {
 public:
  Stage(Program& program, const RaggedLoop& loop, bool recompute) : staged_(program), loop_(loop), recompute_(recompute) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage() = default;
  /// A value of the forward iteration: one that is kept, or made again of such values.
  VarId value(VarId forward) {
    return find(forward, values_, [this](VarId var) { return held(var); });
  }
  /// The same over the rows of all iterations, behind the loop.
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
  const RaggedLoop& loop_;

 private:
  template <class Held>
  VarId find(VarId forward, std::map<VarId, VarId>& values, const Held& take) {
    if (forward == no_var || staged_.var(forward).block != loop_.body) return forward;
    if (const auto known = values.find(forward); known != values.end()) return known->second;
    if (const Tensor* number = staged_.constant(forward)) return values[forward] = build::constant(*number).id();
    const std::optional<Op> op = recompute_ ? maker(forward) : std::nullopt;
    if (!op) return values[forward] = take(forward);
    Op again{op->type, {}, {}, op->attributes, op->label};
    for (const VarId input : op->inputs) again.inputs.push_back(find(input, values, take));
    const std::vector<VarId> made = emit(staged_, std::move(again));
    for (std::size_t i = 0; i < made.size(); ++i) values[op->outputs[i]] = made[i];
    return values.at(forward);
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
  BodyWalk(Program& program, const std::set<VarId>& active, const RaggedLoop& loop, const std::vector<bool>& live, Stage& stage)
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

  std::optional<std::size_t> state_of(VarId array) const {
    for (std::size_t i = 0; i < loop_.states.size(); ++i)
      if (loop_.states[i].array == array) return i;
    return std::nullopt;
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
    sums_.add(op.inputs[2], stage_.incoming(op.inputs[0]));
    const auto state = state_of(op.inputs[0]);
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
      state_terms_[*state_of(op.inputs[0])].push_back(total);
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
    for (const VarId input : op.inputs) weights = weights || (input != no_var && outside(input) && sums_.active(input));
    if (weights && !sum_rows_behind(op)) {
      Deferred later{op, {}};
      for (const VarId output : op.outputs)
        if (sums_.has(output)) later.gradients[output] = stage_.output(sums_.sum(output));
      deferred.push_back(std::move(later));
    }
    sums_.visit(op, [this](VarId input) { return !outside(input); });
  }

  /// Gradients of vectors that all rows share are sums over rows. The rows are computed in the loop, beside the rest of the rule, and summed behind
  /// it. False for other weights, and for a rule that ends in something else than such sums.
  bool sum_rows_behind(const Op& op) {
    const auto wants = [&](std::size_t input) {
      return op.inputs[input] != no_var && outside(op.inputs[input]) && sums_.active(op.inputs[input]);
    };
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      if (wants(i) && program_.var(op.inputs[i]).type.rank() != 1) return false;
    const int block = build::Guard::current().block();
    const std::size_t begin = program_.block(block).ops.size();
    const std::vector<VarId> found = GradientSums::call_rule(
        program_, op, wants, [this](VarId var) { return stage_.value(var); }, [this](VarId output) { return sums_.sum_with_lod(output); },
        where_);
    std::vector<RowSum> made;
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i] != no_var && wants(i)) made.push_back({op.inputs[i], found[i]});
    if (!std::all_of(made.begin(), made.end(), [&](RowSum& each) { return take_row_sum(block, begin, each); })) return false;
    for (const RowSum& each : made) row_sums.push_back({each.var, stage_.output(each.rows)});
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
      if (open) refuse("op " + op.type + " reads '" + program_.var(input).name + "', which may have rows of its own");
    }
    if (!def.follow_rows) refuse("op " + op.type + " is not known to be row-wise");
    const std::vector<int> followed = def.follow_rows(InferContext(program_, op, loop_.body), axes);
    if (std::any_of(followed.begin(), followed.end(), [](int axis) { return axis != 0; })) refuse("op " + op.type + " is not row-wise");
  }

  Program& program_;
  const RaggedLoop& loop_;
  const std::vector<bool>& live_;
  Stage& stage_;
  const std::string where_;
  GradientSums sums_;
  std::map<std::size_t, std::vector<VarId>> state_terms_;
  std::map<VarId, std::vector<VarId>> static_terms_;
};

/// The gradients of an op's weights over the rows of all iterations.
template <class Value, class GradientOf>
void add_weights(Program& program, const std::set<VarId>& active, const Deferred& later, int body, const Value& value,
                 const GradientOf& gradient_of, LoopGradients& made) {
  const auto wants = [&](std::size_t input) {
    const VarId var = later.op.inputs[input];
    return program.var(var).block != body && active.contains(var);
  };
  const auto gradient = [&](VarId output) {
    const auto found = later.gradients.find(output);
    return found == later.gradients.end() ? no_var : gradient_of(found->second);
  };
  const std::vector<VarId> found =
      GradientSums::call_rule(program, later.op, wants, value, gradient, " in the loop of block " + std::to_string(body));
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i] != no_var && wants(i)) made.tensors.emplace_back(later.op.inputs[i], found[i]);
}

std::vector<std::int64_t> row_shape(const Program& program, VarId var) {
  const VarType& type = program.var(var).type;
  if (!type.shape || type.rank() == 0) refuse("the extents of '" + program.var(var).name + "' are not known");
  std::vector<std::int64_t> extents(type.shape->begin() + 1, type.shape->end());
  for (const std::int64_t extent : extents)
    if (extent == DDim::unknown) refuse("the extents of a row of '" + program.var(var).name + "' are not known");
  return extents;
}

bool has_kind(const ArrayGradients& arrays, VarId array, ArrayGradient::Kind kind) {
  const auto found = arrays.find(array);
  return found != arrays.end() &&
         std::any_of(found->second.begin(), found->second.end(), [kind](const ArrayGradient& each) { return each.kind == kind; });
}

/// Finds which values the backward loop reads. Its ops go to a copy of the program, which is dropped.
class Rehearsal : public Stage {
 public:
  Rehearsal(const Program& program, const RaggedLoop& loop, const ArrayGradients& arrays, bool recompute)
      : Stage(program_, loop, recompute), program_(program), guard_(program_), at_(guard_, loop.block), arrays_(arrays) {}

  Program& program() { return program_; }
  VarId held(VarId forward) override {
    if (std::find(needed.begin(), needed.end(), forward) == needed.end()) needed.push_back(forward);
    return stand_in(program_.var(forward).type);
  }
  VarId flat_held(VarId forward) override { return held(forward); }
  VarId cut(VarId gradient) override { return gradient; }
  VarId incoming(VarId array) override {
    if (!has_kind(arrays_, array, ArrayGradient::Kind::packed)) return no_var;
    return stand_in(program_.var(loop_.written.at(array)).type);
  }
  VarId memory(std::size_t state) override { return stand_in(program_.var(loop_.written.at(loop_.states[state].array)).type); }
  void update(std::size_t, VarId) override {}
  void accumulate(VarId, VarId) override {}
  std::size_t output(VarId rows) override {
    outputs_.push_back(rows);
    return outputs_.size() - 1;
  }
  VarId output_rows(std::size_t output) { return stand_in(program_.var(outputs_[output]).type); }

  std::vector<VarId> needed;

 private:
  VarId stand_in(VarType type) {
    type.ordered = false;
    return program_.add_var("", type, loop_.block);
  }

  Program program_;
  build::Guard guard_;
  build::BlockGuard at_;
  const ArrayGradients& arrays_;
  std::vector<VarId> outputs_;
};

/// A value of the forward loop's iterations: the slots that hold it, and the order they were made with.
struct KeptSlots {
  VarId array = no_var;
  VarId order = no_var;
  VarId rows = no_var;  ///< the same, packed, where they are at hand
};
using Kept = std::map<VarId, KeptSlots>;

/// The backward loop itself.
class RaggedStage : public Stage {
 public:
  RaggedStage(Program& program, const RaggedLoop& loop, const ArrayGradients& arrays, const Kept& kept, const MemoryPolicy& memory)
      : Stage(program, loop, memory.kind == MemoryPolicy::Kind::recompute),
        program_(program),
        kept_(kept),
        memory_(memory),
        rnn_({.level = static_cast<int>(loop.level), .reverse = !loop.reverse}) {
    for (const auto& [array, value] : loop.written) {
      const auto found = arrays.find(array);
      if (found == arrays.end()) continue;
      for (const ArrayGradient& each : found->second) {
        std::map<VarId, VarId>& to = each.kind == ArrayGradient::Kind::last ? last_ : incoming_;
        const auto [at, first] = to.emplace(array, each.var);
        if (!first) at->second = emit1(program_, "add", {at->second, each.var});
      }
    }
  }

  template <class F>
  void run(const F& walk) {
    first_rows_ = first_rows();
    const VarId flows = memory_.kind == MemoryPolicy::Kind::truncate ? flow_rows() : no_var;
    const auto block = rnn_.block();
    rnn_.step_input(Var::of(first_rows_));
    if (flows != no_var) flows_ = rnn_.step_input(Var::of(flows)).id();
    walk();
    for (const VarId rows : outputs_) rnn_.output(Var::of(rows));
  }

  VarId held(VarId forward) override { return like_kept(forward, rnn_.step_slot(build::ArrayVar::of(Var::of(slots_of(forward)))).id()); }
  VarId flat_held(VarId forward) override { return like_kept(forward, emit1(program_, "tensor_array_concat", {slots_of(forward)})); }
  VarId cut(VarId gradient) override {
    if (flows_ == no_var) return gradient;
    const VarId none = emit1(program_, "constant", {}, {{"value", number(program_.var(gradient).type.dtype, 0)}});
    const VarId flows = build::greater(Var::of(flows_), Var::of(none)).id();
    return emit1(program_, "where", {flows, gradient, none});
  }
  VarId incoming(VarId array) override {
    const auto found = incoming_.find(array);
    if (found == incoming_.end()) return no_var;
    return rnn_.step_input(Var::of(found->second)).id();
  }
  VarId memory(std::size_t state) override {
    if (const auto known = memories_.find(state); known != memories_.end()) return known->second.id();
    const VarId array = loop_.states[state].array;
    const VarId value = loop_.written.at(array);
    const auto last = last_.find(array);
    const Var made =
        last != last_.end() ? rnn_.memory(Var::of(last->second)) : rnn_.memory(program_.var(value).type.dtype, row_shape(program_, value));
    return memories_.emplace(state, made).first->second.id();
  }
  void update(std::size_t state, VarId gradient) override {
    memory(state);
    rnn_.update_memory(memories_.at(state), Var::of(gradient));
  }
  void accumulate(VarId of, VarId gradient) override {
    const Var sum = rnn_.memory(program_.var(of).type.dtype, row_shape(program_, of));
    rnn_.update_memory(sum, sum + Var::of(gradient));
    sums_.emplace(of, sum);
  }
  std::size_t output(VarId rows) override {
    const auto found = std::find(outputs_.begin(), outputs_.end(), rows);
    if (found == outputs_.end()) outputs_.push_back(rows);
    return static_cast<std::size_t>(std::find(outputs_.begin(), outputs_.end(), rows) - outputs_.begin());
  }

  // ---- Behind the loop ----

  /// In the caller's order of sequences.
  VarId packed_output(std::size_t output) { return *packed_outputs_.insert(rnn_.outputs().at(output).id()).first; }
  /// In the order of the slots of this loop, which costs no copy.
  VarId flat_output(std::size_t output) {
    const auto [at, first] = flat_outputs_.emplace(output, no_var);
    if (first) at->second = emit1(program_, "tensor_array_concat", {rnn_.output_slots(output).var().id()});
    return at->second;
  }
  VarId sum_of_rows(std::size_t output) {
    const auto [at, first] = row_sums_.emplace(output, no_var);
    if (first)
      at->second = emit1(program_, "reduce", {flat_output(output)},
                         {{"kind", std::string("sum")}, {"axes", std::vector<std::int64_t>{0}}, {"keepdims", false}});
    return at->second;
  }
  /// Outputs that nobody asked for in the caller's order are not packed.
  void drop_unread_packs() {
    std::erase_if(program_.block(loop_.block).ops, [this](const Op& op) {
      const auto made = [&](const Var& output) { return op.outputs[0] == output.id(); };
      return op.type == "pack" && std::any_of(rnn_.outputs().begin(), rnn_.outputs().end(), made) &&
             !packed_outputs_.contains(op.outputs[0]);
    });
  }
  VarId boot_gradient(std::size_t state) const { return rnn_.last(memories_.at(state)).id(); }
  const std::map<VarId, Var>& sums() const { return sums_; }
  VarId total(VarId of) const { return rnn_.last(sums_.at(of)).id(); }

 private:
  VarId first_rows() const {
    if (!incoming_.empty()) return incoming_.begin()->second;
    for (const auto& [array, rows] : loop_.sources)
      if (rows != no_var) return rows;
    const VarId array = loop_.sources.begin()->first;  // another loop wrote it
    return emit1(program_, "pack", {array, loop_.orders.at(array)}, {{"level", loop_.level}}, program_.var(array).name);
  }
  /// The slots of a kept value in the order of this loop. Emitted in front of the loop.
  VarId slots_of(VarId forward) {
    const KeptSlots& kept = kept_.at(forward);
    if (kept.rows == first_rows_ && first_rows_ != no_var) return rnn_.input_slots().var().id();
    const auto [at, first] = slots_.emplace(kept.array, no_var);
    if (first) {
      const build::BlockGuard outside(build::Guard::current(), loop_.block);
      at->second = emit1(program_, "reorder_steps", {kept.array, kept.order, rnn_.order().var().id()}, {}, program_.var(kept.array).name);
    }
    return at->second;
  }
  /// 0 in the first row of each run of iterations, 1 elsewhere.
  VarId flow_rows() {
    return emit1(program_, "run_rows", {first_rows_}, {{"every", memory_.k1}, {"level", loop_.level}, {"reverse", loop_.reverse}});
  }
  /// Rows that were kept in another dtype have their own again.
  VarId like_kept(VarId forward, VarId rows) {
    const DType dtype = program_.var(forward).type.dtype;
    return program_.var(rows).type.dtype == dtype ? rows : build::cast(Var::of(rows), dtype).id();
  }

  Program& program_;
  const Kept& kept_;
  const MemoryPolicy memory_;
  VarId first_rows_ = no_var;
  VarId flows_ = no_var;
  build::DynamicRNN rnn_;
  std::map<VarId, VarId> incoming_;
  std::map<VarId, VarId> last_;
  std::map<std::size_t, VarId> flat_outputs_, row_sums_;
  std::set<VarId> packed_outputs_;
  std::map<VarId, VarId> slots_;  ///< array of the forward loop → the same in the order of this one
  std::map<std::size_t, Var> memories_;
  std::map<VarId, Var> sums_;
  std::vector<VarId> outputs_;
};

/// The gradients of arrays must be of kinds that a loop over ragged rows takes.
void check_kinds(const RaggedLoop& loop, const ArrayGradients& arrays) {
  for (const auto& [array, value] : loop.written) {
    const auto found = arrays.find(array);
    if (found == arrays.end()) continue;
    for (const ArrayGradient& each : found->second) {
      if (each.kind == ArrayGradient::Kind::packed) continue;
      const auto state = std::find_if(loop.states.begin(), loop.states.end(), [a = array](const auto& s) { return s.array == a; });
      if (each.kind != ArrayGradient::Kind::last || state == loop.states.end() || state->boot != each.boot)
        refuse("slots of an array that the loop writes are read one by one");
    }
  }
}

/// What the forward loop has to keep, and what it reads.
Kept kept_slots(Program& program, const RaggedLoop& loop, const std::vector<VarId>& needed) {
  Kept all;
  std::vector<std::string> names;
  for (const VarId var : needed) {
    const auto& ops = program.block(loop.body).ops;
    const auto read =
        std::find_if(ops.begin(), ops.end(), [var](const Op& op) { return op.type == "tensor_array_read" && op.outputs[0] == var; });
    const auto source = read == ops.end() ? loop.sources.end() : loop.sources.find(read->inputs[0]);
    if (source != loop.sources.end())
      all[var] = {source->first, loop.orders.at(source->first), source->second};
    else
      names.push_back(program.var(var).name);
  }
  if (names.empty()) return all;
  const std::vector<KeptValue> kept = keep_values(program, loop.body, names);
  for (const KeptValue& value : kept) {
    VarId order = no_var;
    for (const Op& op : program.block(loop.block).ops)
      if (!op.outputs.empty() && op.outputs[0] == value.array && op.inputs.size() > 1) order = op.inputs[1];
    if (order == no_var) refuse("the values that are kept have no order");
    all[value.var] = {value.array, order};
  }
  return all;
}

}  // namespace

LoopGradients recurrence_backward(Program& program, const std::set<VarId>& active, int body, const ArrayGradients& arrays,
                                  const MemoryPolicy& memory) {
  build::Guard guard(program);
  const build::BlockGuard at(guard, lowering::find_loop(program, body).first);
  const RaggedLoop loop = RaggedReader(program, body).read();
  check_kinds(loop, arrays);
  // A state that no gradient reaches is none of the backward loop's. Leaving one out may leave out others.
  std::vector<bool> live(loop.states.size(), true);
  std::vector<VarId> needed;
  for (bool stable = false; !stable;) {
    Rehearsal rehearsal(program, loop, arrays, memory.kind == MemoryPolicy::Kind::recompute);
    BodyWalk walk(rehearsal.program(), active, loop, live, rehearsal);
    walk.run();
    LoopGradients ignored;
    for (const Deferred& later : walk.deferred)
      add_weights(
          rehearsal.program(), active, later, loop.body, [&](VarId var) { return rehearsal.flat_value(var); },
          [&](std::size_t output) { return rehearsal.output_rows(output); }, ignored);
    needed = rehearsal.needed;
    stable = true;
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (!live[i] || walk.reached[i]) continue;
      if (has_kind(arrays, loop.states[i].array, ArrayGradient::Kind::last)) refuse("a last state does not depend on the state before");
      live[i] = false;
      stable = false;
    }
  }
  const Kept kept = kept_slots(program, loop, needed);
  RaggedStage stage(program, loop, arrays, kept, memory);
  BodyWalk walk(program, active, loop, live, stage);
  stage.run([&] { walk.run(); });
  LoopGradients made;
  for (const auto& [array, output] : walk.inputs)
    made.arrays.emplace_back(array, ArrayGradient{ArrayGradient::Kind::packed, stage.packed_output(output), no_var, loop.orders.at(array)});
  for (std::size_t i = 0; i < loop.states.size(); ++i)
    if (live[i] && active.contains(loop.states[i].boot)) made.tensors.emplace_back(loop.states[i].boot, stage.boot_gradient(i));
  for (const auto& [var, sum] : stage.sums()) made.tensors.emplace_back(loop.statics.at(var), stage.total(var));
  for (const auto& [var, output] : walk.row_sums) made.tensors.emplace_back(var, stage.sum_of_rows(output));
  for (const Deferred& later : walk.deferred)
    add_weights(
        program, active, later, loop.body, [&](VarId var) { return stage.flat_value(var); },
        [&](std::size_t output) { return stage.flat_output(output); }, made);
  stage.drop_unread_packs();
  return made;
}

}  // namespace millrace::autodiff
