// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_filters.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/concat.h>
#include <millrace/runtime/lowering/internal/append_op.h>
#include <millrace/runtime/lowering/internal/dense_loops.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/internal/packing.h>

namespace millrace {
namespace {

using Ints = std::vector<std::int64_t>;

/// The op that puts a row behind a window.
constexpr const char* window_op = "concat";

/// Elements of a vector that is the same in all iterations: those from `begin` on of a var of the step.
struct Weights {
  VarId var = no_var;
  std::int64_t begin = 0;
};

/// The content of columns as wide as a row of the input: the row that came `delay` iterations ago, or a sum of such rows.
struct Columns {
  struct Term {
    std::int64_t delay = 0;
    Weights weights;
  };
  std::optional<std::int64_t> delay;  ///< a row as it is; else
  std::vector<Term> terms;            ///< products in the order in which they are added
  std::optional<Weights> bias;        ///< added last
};

/// The iteration of a filter, read op by op: each var of rows is a list of columns of the input's width, side by side.
class FilterStep {
 public:
  FilterStep(const Program& step, std::int64_t width) : step_(step), width_(width) {
    const VarId x = step.inputs()[0].var, state = step.inputs()[1].var;
    known_[x] = {row(0)};
    const std::optional<std::int64_t> elements = width_of(state);
    reach_ = elements && *elements % width == 0 ? *elements / width : 0;
    for (std::int64_t delay = reach_; delay > 0; --delay) known_[state].push_back(row(delay));
    for (const Op& op : step.block(0).ops) follow(op);
  }

  std::int64_t reach() const { return reach_; }
  /// Whether `var` is the window of the next iteration.
  bool is_next_window(VarId var) const {
    const auto found = known_.find(var);
    if (reach_ == 0 || found == known_.end() || std::ssize(found->second) != reach_) return false;
    for (std::int64_t i = 0; i < reach_; ++i)
      if (found->second[static_cast<std::size_t>(i)].delay != reach_ - 1 - i) return false;
    return true;
  }
  /// The sum that `var` is; null: it is none.
  const Columns* sum(VarId var) const {
    const auto found = known_.find(var);
    return found == known_.end() || found->second.size() != 1 || found->second[0].terms.empty() ? nullptr : &found->second[0];
  }

 private:
  static Columns row(std::int64_t delay) {
    Columns made;
    made.delay = delay;
    return made;
  }
  /// The elements of a row, where `var` is rows [?, elements].
  std::optional<std::int64_t> width_of(VarId var) const {
    const VarType& type = step_.var(var).type;
    if (type.rank() != 2 || (*type.shape)[0] != DDim::unknown || (*type.shape)[1] < 1) return std::nullopt;
    return (*type.shape)[1];
  }
  /// `var` as a vector of `elements` numbers that does not depend on rows; nothing for other vars.
  std::optional<Weights> shared(VarId var, std::int64_t elements) const {
    const VarType& type = step_.var(var).type;
    if (!type.is_static() || type.rank() < 1 || type.rank() > 2 || (*type.shape)[type.rank() - 1] != elements ||
        type.shape->elements() != elements)
      return std::nullopt;
    const bool outside = step_.constant(var) != nullptr ||
                         std::any_of(step_.inputs().begin() + 2, step_.inputs().end(), [&](const auto& port) { return port.var == var; });
    return outside ? std::optional(Weights{var, 0}) : std::nullopt;
  }

  void follow(const Op& op) {
    using Arithmetic = OpTraits::Arithmetic;
    const Arithmetic kind = step_.registry().at(op.type).traits.arithmetic;
    if (kind == Arithmetic::multiply) return bind(op, product(op));
    if (kind == Arithmetic::add) return bind(op, addition(op));
    if (op.type == "concat") return bind(op, joined(op));
    if (op.type == "slice") return bind(op, cut(op));
    const bool passes_on = op.type == "reshape" || step_.registry().at(op.type).traits.forwards;
    if (passes_on && known_.contains(op.inputs[0]) && width_of(op.outputs[0]) == width_of(op.inputs[0])) bind(op, known_.at(op.inputs[0]));
  }
  void bind(const Op& op, std::optional<std::vector<Columns>> made) {
    if (made && width_of(op.outputs[0]) == width_ * std::ssize(*made)) known_[op.outputs[0]] = std::move(*made);
  }
  const std::vector<Columns>* find(VarId var) const {
    const auto found = known_.find(var);
    return found == known_.end() ? nullptr : &found->second;
  }

  std::optional<std::vector<Columns>> product(const Op& op) const {
    const bool first = find(op.inputs[0]) != nullptr;
    const std::vector<Columns>* const rows = find(op.inputs[first ? 0 : 1]);
    if (rows == nullptr) return std::nullopt;
    const std::optional<Weights> weights = shared(op.inputs[first ? 1 : 0], width_ * std::ssize(*rows));
    if (!weights) return std::nullopt;
    std::vector<Columns> made;
    for (const Columns& columns : *rows) {
      if (!columns.delay) return std::nullopt;
      made.push_back({std::nullopt, {{*columns.delay, {weights->var, width_ * std::ssize(made)}}}, std::nullopt});
    }
    return made;
  }

  /// Sums grow by one product at a time, on either side: a + b and b + a have one result.
  std::optional<std::vector<Columns>> addition(const Op& op) const {
    const std::vector<Columns>*a = find(op.inputs[0]), *b = find(op.inputs[1]);
    if (a == nullptr && b == nullptr) return std::nullopt;
    std::vector<Columns> made = a != nullptr ? *a : *b;
    if (a == nullptr || b == nullptr) {
      const std::optional<Weights> bias = shared(op.inputs[a == nullptr ? 0 : 1], width_ * std::ssize(made));
      if (!bias) return std::nullopt;
      for (std::size_t i = 0; i < made.size(); ++i) {
        if (made[i].bias || made[i].terms.empty()) return std::nullopt;
        made[i].bias = Weights{bias->var, width_ * static_cast<std::int64_t>(i)};
      }
      return made;
    }
    if (a->size() != b->size()) return std::nullopt;
    for (std::size_t i = 0; i < made.size(); ++i) {
      const bool behind = (*b)[i].terms.size() == 1;
      const Columns &sum = behind ? (*a)[i] : (*b)[i], &one = behind ? (*b)[i] : (*a)[i];
      if (sum.terms.empty() || one.terms.size() != 1 || sum.bias || one.bias) return std::nullopt;
      made[i] = sum;
      made[i].terms.push_back(one.terms[0]);
    }
    return made;
  }

  std::optional<std::vector<Columns>> joined(const Op& op) const {
    const std::int64_t axis = op.attributes.get<std::int64_t>("axis");
    if (axis != 1 && axis != -1) return std::nullopt;
    std::vector<Columns> made;
    for (const VarId input : op.inputs) {
      const std::vector<Columns>* const part = find(input);
      if (part == nullptr) return std::nullopt;
      made.insert(made.end(), part->begin(), part->end());
    }
    return made;
  }

  std::optional<std::vector<Columns>> cut(const Op& op) const {
    const std::vector<Columns>* const rows = find(op.inputs[0]);
    const std::optional<std::int64_t> elements = width_of(op.outputs[0]);
    const Ints starts = op.attributes.get<Ints>("starts"), axes = op.attributes.get_or("axes", Ints{}),
               steps = op.attributes.get_or("steps", Ints{1});
    if (rows == nullptr || !elements || starts.size() != 1 || axes.size() != 1 || (axes[0] != 1 && axes[0] != -1) || steps != Ints{1})
      return std::nullopt;
    const std::int64_t whole = width_ * std::ssize(*rows);
    const std::int64_t begin = std::clamp<std::int64_t>(starts[0] < 0 ? starts[0] + whole : starts[0], 0, whole);
    if (begin % width_ != 0 || *elements % width_ != 0) return std::nullopt;
    const auto first = rows->begin() + begin / width_;
    return std::vector<Columns>(first, first + *elements / width_);
  }

  const Program& step_;
  const std::int64_t width_;
  std::int64_t reach_ = 0;
  std::map<VarId, std::vector<Columns>> known_;
};

class FilterJoiner {
 public:
  explicit FilterJoiner(Program& program) : program_(program), dense_(program) {}

  /// True where there was a loop that filters.
  bool run() {
    std::vector<Op> made;
    for (const Op& op : program_.block(0).ops) {
      if (std::optional<Loop> loop = lowering::DenseLoops::is_small(program_, op, window_op) ? find(op) : std::nullopt) {
        filter(*loop, made);
        dense_.empty(loop->dense);
        loops_.push_back(std::move(*loop));
      } else if (!replace(op, made)) {
        made.push_back(op);
      }
    }
    if (loops_.empty()) return false;
    dense_.finish(std::move(made));
    return true;
  }

 private:
  struct Loop {
    lowering::DenseLoop dense;
    VarId x = no_var;  ///< the input, [T, N, C]
    std::int64_t width = 0, reach = 0;
    Columns sum;
    VarId filtered = no_var, last = no_var;  ///< the sums, and the window behind the last step, both with the axes of the filter
    Ints perm;                               ///< the `transpose` that makes the axes of x of the axes of the filter
  };

  std::optional<Loop> find(const Op& op) const {
    Loop made;
    std::optional<lowering::DenseLoop> dense = dense_.find(op);
    if (!dense || dense->inputs.size() != 1) return std::nullopt;
    made.dense = std::move(*dense);
    made.x = made.dense.inputs[0];
    const VarType& x = program_.var(made.x).type;
    if (x.rank() != 3 || (*x.shape)[2] < 1) return std::nullopt;
    made.width = (*x.shape)[2];
    const Program& iteration = made.dense.form.step;
    const FilterStep step(iteration, made.width);
    made.reach = step.reach();
    const Columns* const sum = step.sum(iteration.outputs()[made.dense.output].var);
    const auto is_next = [&](VarId var) { return step.is_next_window(var); };
    if (sum == nullptr || !std::all_of(made.dense.next.begin(), made.dense.next.end(), is_next)) return std::nullopt;
    made.sum = *sum;
    return made;
  }

  VarId emit(Op op, std::vector<Op>& made) { return lowering::append_op(program_, std::move(op), made); }
  VarId transposed(VarId var, const Ints& perm, std::vector<Op>& made) {
    return perm == Ints{0, 1, 2} ? var : emit({"transpose", {var}, {}, {{"perm", perm}}, {}}, made);
  }
  VarId sliced(VarId var, std::int64_t axis, std::int64_t begin, std::int64_t end, std::vector<Op>& made) {
    return emit({"slice", {var}, {}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{axis}}, {"steps", Ints{1}}}, {}}, made);
  }

  /// A vector of the step as a row [1, C] or a vector [C] of block 0.
  VarId vector(const Loop& loop, const Weights& weights, DDim shape, std::vector<Op>& made) {
    const Program& step = loop.dense.form.step;
    if (const Tensor* const known = step.constant(weights.var)) {
      const Tensor flat = (known->is_contiguous() ? *known : known->copy_to(CpuPlace{})).reshape(DDim{known->elements()});
      return program_.add_parameter("weights", flat.rows(weights.begin, weights.begin + loop.width).reshape(shape));
    }
    std::size_t place = 2;
    while (step.inputs()[place].var != weights.var) ++place;
    const VarId flat = emit({"reshape", {loop.dense.form.shared[place - 2]}, {}, {{"shape", Ints{-1}}}, {}}, made);
    const VarId part = sliced(flat, 0, weights.begin, weights.begin + loop.width, made);
    return emit({"reshape", {part}, {}, {{"shape", Ints(shape.begin(), shape.end())}}, {}}, made);
  }

  void filter(Loop& loop, std::vector<Op>& made) {
    // The axes of the tensor of which x is a transpose: places, sequences and channels stand at perm[0], perm[1] and perm[2].
    VarId from = loop.x;
    loop.perm = {0, 1, 2};
    if (const Op* const turned = dense_.maker(loop.x); turned != nullptr && turned->type == "transpose") {
      const Ints perm = turned->attributes.get_or("perm", Ints{});
      if (perm.size() == 3 && std::all_of(perm.begin(), perm.end(), [](std::int64_t axis) { return axis >= 0; })) {
        from = turned->inputs[0];
        loop.perm = perm;
      }
    }
    const std::int64_t places = loop.perm[0], sequences = loop.perm[1], channels = loop.perm[2];
    // The window [N, reach·C] with these axes.
    Ints order(3);
    order[static_cast<std::size_t>(sequences)] = 0;
    order[static_cast<std::size_t>(places)] = 1;
    order[static_cast<std::size_t>(channels)] = 2;
    const VarId rows = emit({"reshape", {loop.dense.boot}, {}, {{"shape", Ints{0, loop.reach, loop.width}}}, {}}, made);
    const VarId past = transposed(rows, order, made);
    std::vector<VarId> taps;
    Ints delays;
    for (const Columns::Term& term : loop.sum.terms) {
      taps.push_back(vector(loop, term.weights, DDim{1, loop.width}, made));
      delays.push_back(term.delay);
    }
    const VarId weights = taps.size() == 1 ? taps[0] : joined(taps, made);
    const VarId bias = loop.sum.bias ? vector(loop, *loop.sum.bias, DDim{loop.width}, made) : no_var;
    Op op{"causal_filter",
          {from, past, weights, bias},
          {},
          {{"sequences", sequences}, {"places", places}, {"channels", channels}, {"delays", delays}},
          {}};
    for (const VarType& type : program_.infer(0, op)) op.outputs.push_back(program_.add_var(op.type, type));
    loop.filtered = op.outputs[0];
    loop.last = op.outputs[1];
    made.push_back(std::move(op));
  }
  VarId joined(const std::vector<VarId>& taps, std::vector<Op>& made) {
    std::vector<Tensor> known;
    for (const VarId tap : taps)
      if (const Tensor* const value = program_.constant(tap)) known.push_back(*value);
    if (known.size() < taps.size()) return emit({"concat", taps, {}, {{"axis", std::int64_t{0}}}, {}}, made);
    ops::PackingStream stream;
    return program_.add_parameter("weights", concat(known, 0, stream));
  }

  /// Readers of the arrays of a loop that is a filter: of its stacked outputs, or of its last state.
  bool replace(const Op& op, std::vector<Op>& made) {
    for (const Loop& loop : loops_) {
      if (op.type == "tensor_array_stack" && op.inputs[0] == loop.dense.outputs) {
        if (loop.perm == Ints{0, 1, 2})
          made.push_back({"identity", {loop.filtered}, op.outputs, {}, op.label});
        else
          made.push_back({"transpose", {loop.filtered}, op.outputs, {{"perm", loop.perm}}, op.label});
        return true;
      }
      if (op.type == "tensor_array_read" && op.inputs[0] == loop.dense.states) {
        const VarId turned = transposed(loop.last, {loop.perm[1], loop.perm[0], loop.perm[2]}, made);
        made.push_back({"reshape", {turned}, op.outputs, {{"shape", Ints{0, loop.reach * loop.width}}}, op.label});
        return true;
      }
    }
    return false;
  }

  Program& program_;
  lowering::DenseLoops dense_;
  std::vector<Loop> loops_;  ///< that were found
};

}  // namespace

bool join_filters(Program& program) { return may_filter(program) && FilterJoiner(program).run(); }

bool may_filter(const Program& program) {
  return program.registry().find("causal_filter") != nullptr && lowering::DenseLoops::has_small(program, window_op);
}

}  // namespace millrace
