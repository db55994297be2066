// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/gradients.h>

#include <algorithm>
#include <utility>

#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/tensor.h>

namespace millrace::ops {

Term plain(const Term& x) { return x.type().lod_depth > 0 ? call("drop_lod", {x}) : x; }
Term with_lod(GradientContext& context, std::size_t input) { return {context, context.input(input)}; }
Term result_with_lod(GradientContext& context, std::size_t output) { return {context, context.output(output)}; }
Term value(GradientContext& context, std::size_t input) { return plain(with_lod(context, input)); }
Term result(GradientContext& context, std::size_t output) { return plain(result_with_lod(context, output)); }
Term gradient(GradientContext& context, std::size_t output) {
  const VarId found = context.gradient(output);
  return found == no_var ? Term() : plain(Term(context, found));
}
int rank_of(const GradientContext& context, std::size_t input) {
  const int rank = context.input_type(input).rank();
  if (rank < 0) throw UnsupportedError("op " + context.op().type + ": the gradient of an input of unknown rank");
  return rank;
}

std::vector<Term> call_all(const std::string& op, const std::vector<Term>& inputs, Attributes attributes) {
  GradientContext& context = inputs.at(0).at();
  std::vector<VarId> vars;
  for (const Term& input : inputs) vars.push_back(input.var());
  std::vector<Term> made;
  for (const VarId output : context.append(Op{op, std::move(vars), {}, std::move(attributes), {}})) made.emplace_back(context, output);
  return made;
}
Term call(const std::string& op, const std::vector<Term>& inputs, Attributes attributes) {
  return call_all(op, inputs, std::move(attributes)).at(0);
}

Term number(GradientContext& context, double value, DType dtype) {
  Tensor held = visit_dtype(dtype, [&]<class T>(std::type_identity<T>) { return Tensor::scalar(convert_element<T>(value)); });
  return {context, context.append1("constant", {}, {{"value", std::move(held)}})};
}
Term list(GradientContext& context, const Ints& values) {
  return {context, context.append1("constant", {}, {{"value", Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())})}})};
}

Term operator+(const Term& a, const Term& b) { return call("add", {a, b}); }
Term operator-(const Term& a, const Term& b) { return call("sub", {a, b}); }
Term operator*(const Term& a, const Term& b) { return call("mul", {a, b}); }
Term operator/(const Term& a, const Term& b) { return call("div", {a, b}); }
Term operator-(const Term& a) { return call("neg", {a}); }
Term operator+(const Term& a, double b) { return a + number(a.at(), b, a.dtype()); }
Term operator*(const Term& a, double b) { return b == 1 ? a : a * number(a.at(), b, a.dtype()); }
Term operator-(double a, const Term& b) { return number(b.at(), a, b.dtype()) - b; }
Term operator/(double a, const Term& b) { return a == 1 ? call("reciprocal", {b}) : number(b.at(), a, b.dtype()) / b; }
Term where(const Term& condition, const Term& a, const Term& b) { return call("where", {condition, a, b}); }
Term masked(const Term& condition, const Term& a) { return where(condition, a, number(a.at(), 0, a.dtype())); }
Term compare(const std::string& op, const Term& a, double b) { return call(op, {a, number(a.at(), b, a.dtype())}); }
Term cast_to(const Term& x, DType dtype) { return x.dtype() == dtype ? x : call("cast", {x}, {{"to", dtype}}); }
DType summing(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype; }
Term reduced(const std::string& kind, const Term& x, const Ints& axes, bool keepdims) {
  return call("reduce", {x}, {{"kind", kind}, {"axes", axes}, {"keepdims", keepdims}});
}
Term unsqueezed(const Term& x, const Ints& axes) { return axes.empty() ? x : call("unsqueeze", {x}, {{"axes", axes}}); }
Term squeezed(const Term& x, const Ints& axes) { return axes.empty() ? x : call("squeeze", {x}, {{"axes", axes}}); }
Term reshaped_to(const Term& x, const Ints& shape) { return call("reshape", {x}, {{"shape", shape}}); }
Term permuted(const Term& x, const Ints& perm) { return call("transpose", {x}, {{"perm", perm}}); }
Term shape_of(const Term& x) {
  return x.type().is_static() ? list(x.at(), Ints(x.type().shape->begin(), x.type().shape->end())) : call("shape", {plain(x)});
}
Term shape_of(const Term& x, std::int64_t begin, std::int64_t end) { return call("shape", {plain(x)}, {{"start", begin}, {"end", end}}); }
Term extent_of(const Term& x, int axis) { return reshaped_to(shape_of(x, axis, std::int64_t{axis} + 1), {}); }
Term zeros_like(const Term& like, DType dtype) { return call("constant_of_shape", {shape_of(like)}, {{"value", zeros_scalar(dtype)}}); }
Term numbers_to(const Term& count) { return call("range", {number(count.at(), 0, DType::i64), count, number(count.at(), 1, DType::i64)}); }

Term stretched(const Term& x, const Term& like, const Ints& axes) {
  const std::optional<DDim>& shape = like.type().shape;
  if (!shape) return call("expand", {x, shape_of(like)});
  Ints wanted(static_cast<std::size_t>(shape->rank()), 1);
  for (const int axis : checked_axes(axes, shape->rank())) wanted[static_cast<std::size_t>(axis)] = (*shape)[axis];
  if (std::find(wanted.begin(), wanted.end(), DDim::unknown) != wanted.end()) return call("expand", {x, shape_of(like)});
  return call("expand", {x, list(x.at(), wanted)});
}

// ---- Setting ----

void set(GradientContext& context, std::size_t input, const Term& gradient) { context.set(input, gradient.var()); }

namespace {

/// The axes of the output along which the input was stretched; none where only a run can tell.
std::optional<Ints> stretched_axes(const GradientContext& context, std::size_t input, std::size_t output) {
  const std::optional<DDim>& from = context.input_type(input).shape;
  const std::optional<DDim>& to = context.output_type(output).shape;
  if (!from || !to || from->rank() > to->rank()) return std::nullopt;
  const int shift = to->rank() - from->rank();
  Ints axes;
  for (int axis = 0; axis < to->rank(); ++axis) {
    const std::int64_t extent = axis < shift ? 1 : (*from)[axis - shift];
    if (axis < shift || (extent == 1 && (*to)[axis] != 1)) {
      axes.push_back(axis);
    } else if (extent == DDim::unknown && (*to)[axis] != 1 &&
               !same_extents(context.program(), context.op().inputs[input], axis - shift, context.op().outputs[output], axis)) {
      return std::nullopt;
    }
  }
  return axes;
}

}  // namespace

void set_summed(GradientContext& context, std::size_t input, const Term& gradient, std::size_t output) {
  if (!context.wants(input)) return;
  const std::optional<Ints> axes = stretched_axes(context, input, output);
  if (!axes) return set(context, input, call("sum_to", {gradient, value(context, input)}));
  if (axes->empty()) return set(context, input, gradient);
  const int shift = context.output_type(output).rank() - context.input_type(input).rank();
  if (std::cmp_equal(axes->size(), shift)) return set(context, input, reduced("sum", gradient, *axes, false));
  Ints gone;
  for (int axis = 0; axis < shift; ++axis) gone.push_back(axis);
  set(context, input, squeezed(reduced("sum", gradient, *axes, true), gone));
}

void set_total(GradientContext& context, std::size_t input, const Term& gradient) {
  if (!context.wants(input)) return;
  const std::optional<DDim>& shape = context.input_type(input).shape;
  const Term total = reduced("sum", gradient, {}, false);
  if (!shape) return set(context, input, call("sum_to", {gradient, value(context, input)}));
  set(context, input, shape->rank() == 0 ? total : reshaped_to(total, Ints(static_cast<std::size_t>(shape->rank()), 1)));
}

// ---- Which extents are the same ----

namespace {

/// Where an extent comes from: an axis of a var, or of no var where it is known.
struct Origin {
  VarId var = no_var;
  int axis = 0;
  std::int64_t extent = DDim::unknown;
  friend bool operator==(const Origin&, const Origin&) = default;
};

/// The ops of a program that give each var.
class Extents {
 public:
  explicit Extents(const Program& program) : program_(program) {}

  Origin origin(VarId var, int axis, int depth = 0) {
    const VarType& type = program_.var(var).type;
    const Origin own{var, axis, DDim::unknown};
    if (!type.is_tensor() || !type.shape || axis >= type.rank()) return own;
    if ((*type.shape)[axis] != DDim::unknown) return {no_var, 0, (*type.shape)[axis]};
    const Op* op = op_of(var);
    if (op == nullptr || depth > most_steps) return own;
    return through(*op, axis, own, depth + 1);
  }

 private:
  static constexpr int most_steps = 1000;

  const Op* op_of(VarId var) {
    const int block = program_.var(var).block;
    auto [held, made] = ops_.try_emplace(block);
    if (made)
      for (const Op& op : program_.block(block).ops)
        for (const VarId output : op.outputs) held->second.emplace(output, &op);
    const auto found = held->second.find(var);
    return found == held->second.end() ? nullptr : found->second;
  }

  Origin through(const Op& op, int axis, const Origin& own, int depth) {
    static const std::set<std::string> elementwise{
        "add",   "sub",        "mul",     "div",           "pow",   "minimum", "maximum",          "mod",          "less",
        "equal", "less_equal", "greater", "greater_equal", "where", "prelu",   "sigmoid_gradient", "tanh_gradient"};
    static const std::set<std::string> same{"neg",
                                            "abs",
                                            "sqrt",
                                            "reciprocal",
                                            "log",
                                            "exp",
                                            "erf",
                                            "sin",
                                            "cos",
                                            "atan",
                                            "sigmoid",
                                            "tanh",
                                            "relu",
                                            "leaky_relu",
                                            "elu",
                                            "celu",
                                            "selu",
                                            "softplus",
                                            "softsign",
                                            "gelu",
                                            "mish",
                                            "hard_sigmoid",
                                            "hard_swish",
                                            "clip",
                                            "scaled_tanh",
                                            "affine",
                                            "cast",
                                            "drop_lod",
                                            "identity",
                                            "softmax",
                                            "log_softmax",
                                            "layer_norm",
                                            "layer_norm_gradient",
                                            "cumsum",
                                            "thresholded_relu",
                                            "sequence_softmax",
                                            "dropout",
                                            "lod_reset",
                                            "lod_append"};
    static const std::set<std::string> cells{"lstm_cell", "lstm_cell_projected", "lstm_gates"};
    if (same.contains(op.type)) return origin(op.inputs[0], axis, depth);
    if (elementwise.contains(op.type)) return meeting(op, axis, own, depth);
    if (cells.contains(op.type)) return axis == 0 ? origin(op.inputs[0], 0, depth) : own;
    if (op.type == "shrink") return axis == 0 ? origin(op.inputs[1], 0, depth) : own;
    if (op.type == "matmul") return of_product(op, axis, own, depth);
    if (op.type == "gemm") return axis == 0 ? origin(op.inputs[0], op.attributes.get_or("trans_a", false) ? 1 : 0, depth) : own;
    if (op.type == "embedding") return axis < program_.var(op.inputs[1]).type.rank() ? origin(op.inputs[1], axis, depth) : own;
    if (op.type == "concat" || op.type == "split") return beside(op, axis, own, depth);
    if (op.type == "slice") return past_slice(op, axis, own, depth);
    if (op.type == "reduce") return past_reduce(op, axis, own, depth);
    if (op.type == "sequence_conv" || op.type == "row_conv") return axis == 0 ? origin(op.inputs[0], 0, depth) : own;
    return own;
  }

  /// Broadcasting: the one unknown extent that does not come from 1, where all that may be it have one origin.
  Origin meeting(const Op& op, int axis, const Origin& own, int depth) {
    const int rank = program_.var(op.outputs[0]).type.rank();
    Origin found;
    for (const VarId input : op.inputs) {
      const int place = axis - (rank - program_.var(input).type.rank());
      if (program_.var(input).type.rank() < 0) return own;
      if (place < 0) continue;
      const Origin each = origin(input, place, depth);
      if (each.extent == 1) continue;
      if (each.extent != DDim::unknown || (found.var != no_var && found != each)) return own;
      found = each;
    }
    return found.var == no_var ? own : found;
  }

  Origin of_product(const Op& op, int axis, const Origin& own, int depth) {
    const int left = program_.var(op.inputs[0]).type.rank(), right = program_.var(op.inputs[1]).type.rank();
    if (left < 2 || right < 1 || right > 2) return own;
    return axis < left - 1 ? origin(op.inputs[0], axis, depth) : own;
  }

  Origin beside(const Op& op, int axis, const Origin& own, int depth) {
    const int rank = program_.var(op.inputs[0]).type.rank();
    if (rank < 0 || checked_axis(op.attributes.get<std::int64_t>("axis"), rank) == axis) return own;
    Origin first = origin(op.inputs[0], axis, depth);
    return first;
  }

  Origin past_slice(const Op& op, int axis, const Origin& own, int depth) {
    const int rank = program_.var(op.inputs[0]).type.rank();
    const Ints axes = op.attributes.get_or("axes", Ints{});
    if (rank < 0 || axes.empty()) return own;
    for (const int cut : checked_axes(axes, rank))
      if (cut == axis) return own;
    return origin(op.inputs[0], axis, depth);
  }

  Origin past_reduce(const Op& op, int axis, const Origin& own, int depth) {
    const int rank = program_.var(op.inputs[0]).type.rank();
    const Ints axes = op.attributes.get_or("axes", Ints{});
    if (rank < 0 || axes.empty()) return own;
    for (const int gone : checked_axes(axes, rank))
      if (gone <= axis) return own;
    return origin(op.inputs[0], axis, depth);
  }

  const Program& program_;
  std::map<int, std::map<VarId, const Op*>> ops_;
};

}  // namespace

bool same_extents(const Program& program, VarId a, int a_axis, VarId b, int b_axis) {
  Extents extents(program);
  return extents.origin(a, a_axis) == extents.origin(b, b_axis);
}

// ---- Tape ----

std::vector<VarId> Tape::append(Op op) {
  Op recorded = op;
  recorded.outputs = outer_.append(std::move(op));
  const std::vector<VarId> made = recorded.outputs;
  if (current_ == nullptr) ops_.push_back(std::move(recorded));
  return made;
}

void Tape::accumulate(VarId var, VarId gradient) {
  const auto [held, fresh] = gradients_.emplace(var, gradient);
  if (!fresh) held->second = outer_.append1("add", {held->second, gradient});
}

void Tape::seed(const Term& x, const Term& gradient) {
  if (gradient.defined()) accumulate(x.var(), gradient.var());
}

VarId Tape::gradient(std::size_t output) const {
  const auto found = gradients_.find(op().outputs.at(output));
  return found == gradients_.end() ? no_var : found->second;
}

void Tape::set(std::size_t input, VarId gradient) {
  const VarId var = op().inputs.at(input);
  if (active_.contains(var)) accumulate(var, gradient);
}

void Tape::run(const std::vector<Term>& leaves) {
  for (const Term& leaf : leaves)
    if (leaf.defined()) active_.insert(leaf.var());
  const auto depends = [&](const Op& op) {
    return std::any_of(op.inputs.begin(), op.inputs.end(), [&](VarId input) { return active_.contains(input); });
  };
  for (const Op& op : ops_)
    if (depends(op)) active_.insert(op.outputs.begin(), op.outputs.end());
  // The rules append to the end; only what was recorded is gone back over.
  for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
    const bool reached = std::any_of(op->outputs.begin(), op->outputs.end(), [&](VarId output) { return gradients_.contains(output); });
    if (!reached || !depends(*op)) continue;
    const OpDef& def = program().registry().at(op->type);
    if (def.cuts_gradient) continue;
    if (!def.gradient) throw UnsupportedError("op " + op->type + " has no gradient");
    current_ = &*op;
    def.gradient(*this);
    current_ = nullptr;
  }
}

Term Tape::gradient_of(const Term& x) const {
  const auto found = gradients_.find(x.var());
  return found == gradients_.end() ? Term() : Term(outer_, found->second);
}

}  // namespace millrace::ops
