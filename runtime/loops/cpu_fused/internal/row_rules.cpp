// SPDX-License-Identifier: Apache-2.0
// The rule of each op for rows that lie in registers.
#include <millrace/runtime/loops/cpu_fused/internal/row_compiler.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include <millrace/kernels/cpu/reduce.h>
#include <millrace/runtime/loops/cpu_fused/internal/grouped_conv.h>
#include <millrace/runtime/loops/cpu_fused/internal/window_copy.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/lstm_form.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace {
namespace {

using View = RowCompiler::View;
using Ints = std::vector<std::int64_t>;

RowOp unary_op(Unary kind, UnaryParams params = {}) {
  RowOp made;
  made.kind = RowOp::Kind::unary;
  made.unary = kind;
  made.params = params;
  return made;
}

RowOp binary_op(Binary kind) {
  RowOp made;
  made.kind = RowOp::Kind::binary;
  made.binary = kind;
  return made;
}

// ---- Elementwise ----

void unary_rule(RowCompiler& c, const Op& op) {
  const ops::UnaryName* named = ops::find_unary(op.type);
  if (!row_plan_has(named->kind)) RowCompiler::refuse(op, "is not in fused loops");
  c.elementwise(unary_op(named->kind, ops::params_of(*named, op.attributes)), {c.at(op.inputs[0])}, op.outputs[0]);
}

void gelu_rule(RowCompiler& c, const Op& op) {
  const bool tanh = op.attributes.get_or("approximate", std::string("none")) == "tanh";
  c.elementwise(unary_op(tanh ? Unary::gelu_tanh : Unary::gelu), {c.at(op.inputs[0])}, op.outputs[0]);
}

void binary_rule(RowCompiler& c, const Op& op) {
  const Binary kind = ops::find_binary(op.type).value();
  const View a = c.at(op.inputs[0]);
  const View b = c.at(op.inputs[1]);
  const Tensor* exponent = kind == Binary::pow ? c.program().constant(op.inputs[1]) : nullptr;
  if (exponent != nullptr && exponent->elements() == 1 && is_floating(exponent->dtype()) && exponent->item() == 2)
    return c.elementwise(unary_op(Unary::square), {a}, op.outputs[0]);
  c.elementwise(binary_op(kind), {a, b}, op.outputs[0]);
}

void mod_rule(RowCompiler& c, const Op& op) {
  const Binary kind = op.attributes.get_or("fmod", false) ? Binary::fmod : Binary::mod;
  c.elementwise(binary_op(kind), {c.at(op.inputs[0]), c.at(op.inputs[1])}, op.outputs[0]);
}

void prelu_rule(RowCompiler& c, const Op& op) {
  c.elementwise(binary_op(Binary::prelu), {c.at(op.inputs[0]), c.at(op.inputs[1])}, op.outputs[0]);
}

/// Nothing but NaN differs from itself.
void is_nan_rule(RowCompiler& c, const Op& op) {
  const View x = c.at(op.inputs[0]);
  c.elementwise(binary_op(Binary::not_equal), {x, x}, op.outputs[0]);
}

/// Truth is 1 or 0 in a register.
void logical_not_rule(RowCompiler& c, const Op& op) {
  const View x = c.at(op.inputs[0]);
  const View none = c.elementwise(binary_op(Binary::sub), {x, x}, x.dims);
  c.elementwise(binary_op(Binary::equal), {x, none}, op.outputs[0]);
}

void where_rule(RowCompiler& c, const Op& op) {
  RowOp made;
  made.kind = RowOp::Kind::where;
  c.elementwise(made, {c.at(op.inputs[0]), c.at(op.inputs[1]), c.at(op.inputs[2])}, op.outputs[0]);
}

void clip_rule(RowCompiler& c, const Op& op) {
  View x = c.at(op.inputs[0]);
  for (const std::size_t bound : {std::size_t{1}, std::size_t{2}}) {
    if (!c.has(op, bound)) continue;
    View limit = c.at(op.inputs[bound]);
    if (limit.rows) RowCompiler::refuse(op, "has a bound that changes from row to row");
    limit.dims = limit.strides = DDim{};
    x = c.elementwise(binary_op(bound == 1 ? Binary::maximum : Binary::minimum), {x, limit}, x.dims);
  }
  c.bind(op.outputs[0], x);
}

void cast_rule(RowCompiler& c, const Op& op) {
  const DType from = c.program().var(op.inputs[0]).type.dtype;
  const DType to = c.program().var(op.outputs[0]).type.dtype;
  if (to == DType::boolean && from != DType::boolean) {
    if (from != c.desc().dtype && !is_integer(from)) RowCompiler::refuse(op, fmt::format("makes truth of {}", name_of(from)));
    return c.elementwise(binary_op(Binary::not_equal), {c.at(op.inputs[0]), c.number(0)}, op.outputs[0]);
  }
  if (to == DType::bf16 && from == DType::f32) {
    RowOp made;
    made.kind = RowOp::Kind::round_bf16;
    return c.elementwise(made, {c.at(op.inputs[0])}, op.outputs[0]);
  }
  // The integer 0 may be −0 in a register.
  if (is_integer(from) && is_floating(to)) return c.elementwise(binary_op(Binary::add), {c.at(op.inputs[0]), c.number(0)}, op.outputs[0]);
  c.bind(op.outputs[0], c.at(op.inputs[0]));
}

void same_rule(RowCompiler& c, const Op& op) { c.bind(op.outputs[0], c.at(op.inputs[0])); }

// ---- Products and cells ----

/// Rows by a vector: by a matrix of one column, whose axis goes.
void matmul_vector(RowCompiler& c, const Op& op, const Tensor& vector) {
  const View from = c.at(op.inputs[0]);
  if (!from.rows || from.dims.rank() == 0) RowCompiler::refuse(op, "multiplies something that has no rows");
  const DDim dims = from.dims.erased(from.dims.rank() - 1);
  const View out = c.make(dims.inserted(dims.rank(), 1));
  c.product(from, (vector.is_contiguous() ? vector : vector.copy_to(CpuPlace{})).reshape(DDim{vector.elements(), 1}), out);
  c.bind(op.outputs[0], {true, out.reg, out.begin, dims, dims.row_major()});
}

void matmul_rule(RowCompiler& c, const Op& op) {
  const Tensor* known = c.program().constant(op.inputs[1]);
  if (known != nullptr && known->rank() == 1 && known->dtype() == c.desc().dtype && known->elements() > 0)
    return matmul_vector(c, op, *known);
  if (c.is_one_matrix(op.inputs[0], op.inputs[1])) return c.matmul(op, op.inputs[0], op.inputs[1], false, c.make(op.outputs[0]));
  c.bind(op.outputs[0], c.matmul_rows(op, c.program().var(op.outputs[0]).type.shape->erased(0)));
}

void gemm_rule(RowCompiler& c, const Op& op) {
  const double beta = op.attributes.get_or("beta", 1.0);
  const bool adds = c.has(op, 2) && beta != 0;
  if (op.attributes.get_or("alpha", 1.0) != 1 || (adds && beta != 1) || op.attributes.get_or("trans_a", false))
    RowCompiler::refuse(op, "is in fused loops without factors and without transposing rows alone");
  const View product = c.make(c.program().var(op.outputs[0]).type.shape->erased(0));
  c.matmul(op, op.inputs[0], op.inputs[1], op.attributes.get_or("trans_b", false), product);
  if (!adds) return c.bind(op.outputs[0], product);
  c.elementwise(binary_op(Binary::add), {product, c.at(op.inputs[2])}, op.outputs[0]);
}

void quantize_rule(RowCompiler& c, const Op& op) { c.quantize(op); }
void matmul_int8_rule(RowCompiler& c, const Op& op) { c.matmul_int8(op); }

/// `c_state`: where the units stand along the last axis.
LstmDesc sized(RowCompiler& c, LstmDesc desc, VarId w, VarId r, VarId c_state) {
  desc.input = w == no_var ? 0 : (*c.program().var(w).type.shape)[0];
  desc.hidden = (*c.program().var(c_state).type.shape)[-1];
  desc.dtype = c.desc().dtype;
  if (r != no_var) desc.weights = c.program().var(r).type.dtype;
  return desc;
}

/// A cell with `products` of its two products still to be made.
template <int products>
void lstm_cell_rule(RowCompiler& c, const Op& op) {
  const auto part = [&](std::size_t at) { return c.has(op, at) ? op.inputs[at] : no_var; };
  const VarId w = products == 2 ? part(ops::in_w) : no_var;
  const VarId r = products >= 1 ? part(2 + products) : no_var;
  const std::size_t rest = 3 + products;
  c.lstm_cell(op, sized(c, ops::lstm_form(op, products), w, r, op.inputs[2]), {w, r, part(rest), part(rest + 1)});
}

// ---- Folds and norms ----

/// Axes of an op's input, in order, as axes of one row's extents.
std::vector<int> axes_of_row(RowCompiler& c, const Op& op, const Ints& axes) {
  if (axes.empty()) RowCompiler::refuse(op, "works along the rows");
  std::vector<int> made;
  for (const std::int64_t axis : axes) made.push_back(c.axis_of(op, op.inputs[0], axis));
  std::sort(made.begin(), made.end());
  return made;
}

/// The last axis, if an op works over it.
int last_axis(RowCompiler& c, const Op& op, std::int64_t axis) {
  const std::vector<int> axes = axes_of_row(c, op, {axis});
  if (axes[0] != c.at(op.inputs[0]).dims.rank() - 1) RowCompiler::refuse(op, "is in fused loops over the last axis alone");
  return axes[0];
}

/// An op over `inner` elements side by side, `outer` times.
RowOp along(RowOp::Kind kind, const View& x, int axis) {
  RowOp made;
  made.kind = kind;
  made.inner = x.dims.slice(axis, x.dims.rank()).elements();
  made.outer = x.dims.slice(0, axis).elements();
  made.in[0] = {x.reg, x.begin, made.inner, 1};
  return made;
}

/// Leading axes of a row beyond which a fold over columns takes too many ops.
constexpr std::int64_t most_column_folds = 64;

/// Columns that stand side by side behind the axes of a fold are folded where they lie. False where they do not stand so.
bool folded_columns(RowCompiler& c, Reduction kind, const View& x, const std::vector<int>& axes, const View& out) {
  const int first = axes.front(), behind = axes.back() + 1;
  if (!c.folds_columns() || kind == Reduction::log_sum_exp || !x.rows || behind == x.dims.rank() ||
      behind - first != static_cast<int>(axes.size()))
    return false;
  RowOp made;
  made.kind = RowOp::Kind::reduce;
  made.reduction = kind;
  made.outer = x.dims.slice(behind, x.dims.rank()).elements();
  made.inner = x.dims.slice(first, behind).elements();
  const std::int64_t folds = x.dims.slice(0, first).elements();
  if (made.outer < 2 || made.inner < 2 || folds == 0 || folds > most_column_folds) return false;
  std::int64_t step = 1;
  for (int axis = x.dims.rank() - 1; axis >= first; --axis) {
    if (axis == behind - 1) step = x.strides[axis];
    if (x.dims[axis] != 1 && x.strides[axis] != step) return false;
    step *= x.dims[axis];
  }
  const std::int64_t apart = x.strides[behind - 1];
  if (apart < made.outer) return false;
  for (std::int64_t fold = 0; fold < folds; ++fold) {
    std::int64_t begin = x.begin, rest = fold;
    for (int axis = first - 1; axis >= 0; --axis) {
      begin += rest % x.dims[axis] * x.strides[axis];
      rest /= x.dims[axis];
    }
    made.in[0] = {x.reg, begin, 1, apart};
    made.out = {out.reg, fold * made.outer, 1, 1};
    c.emit(made);
  }
  return true;
}

/// `x` folded over `axes` of a row, which go behind the others in their order, into a register of `dims`.
View folded(RowCompiler& c, const Op& op, Reduction kind, const View& x, const std::vector<int>& axes, const DDim& dims) {
  const View out = c.make(dims);
  if (folded_columns(c, kind, x, axes, out)) return out;
  std::vector<int> order;
  for (int axis = 0; axis < x.dims.rank(); ++axis)
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) order.push_back(axis);
  const auto kept = static_cast<int>(order.size());
  order.insert(order.end(), axes.begin(), axes.end());
  View turned = x;
  for (std::size_t i = 0; i < order.size(); ++i) {
    turned.dims[static_cast<int>(i)] = x.dims[order[i]];
    turned.strides[static_cast<int>(i)] = x.strides[order[i]];
  }
  RowOp made = along(RowOp::Kind::reduce, c.contiguous(turned), kept);
  if (made.inner == 0) RowCompiler::refuse(op, "folds no elements");
  made.reduction = kind;
  made.out = {out.reg, 0, 1, 1};
  c.emit(made);
  return out;
}

void reduce_rule(RowCompiler& c, const Op& op) {
  static const std::map<std::string, Reduction> kinds{{"sum", Reduction::sum},
                                                      {"mean", Reduction::mean},
                                                      {"max", Reduction::max},
                                                      {"min", Reduction::min},
                                                      {"l1", Reduction::l1},
                                                      {"l2", Reduction::l2},
                                                      {"sum_square", Reduction::sum_square},
                                                      {"log_sum", Reduction::log_sum},
                                                      {"log_sum_exp", Reduction::log_sum_exp}};
  const auto kind = kinds.find(op.attributes.get<std::string>("kind"));
  if (kind == kinds.end()) RowCompiler::refuse(op, "of that kind is not in fused loops");
  const std::vector<int> axes = axes_of_row(c, op, op.attributes.get_or("axes", Ints{}));
  const DDim dims = c.program().var(op.outputs[0]).type.shape->erased(0);
  c.bind(op.outputs[0], folded(c, op, kind->second, c.at(op.inputs[0]), axes, dims));
}

/// The sum over the axes of a row that were stretched.
void sum_to_rule(RowCompiler& c, const Op& op) {
  const View x = c.at(op.inputs[0]);
  const View like = c.at(op.inputs[1]);
  if (x.rows != like.rows || x.dims.rank() != like.dims.rank()) RowCompiler::refuse(op, "sums over the rows");
  std::vector<int> axes;
  for (int axis = 0; axis < x.dims.rank(); ++axis)
    if (x.dims[axis] != like.dims[axis]) axes.push_back(axis);
  if (!axes.empty() && !x.rows) RowCompiler::refuse(op, "sums something that has no rows");
  c.bind(op.outputs[0], axes.empty() ? x : folded(c, op, Reduction::sum, x, axes, like.dims));
}

/// The function that `make` gives for the dtype of the plan.
template <class F>
RowFunction of_dtype(RowCompiler& c, F&& make) {
  return c.desc().dtype == DType::f64 ? make(std::type_identity<double>{}) : make(std::type_identity<float>{});
}

/// The place of the greatest or least element along an axis of a row, as a number.
template <bool greatest>
void arg_rule(RowCompiler& c, const Op& op) {
  const View x = c.at(op.inputs[0]);
  const int axis = axes_of_row(c, op, {op.attributes.get_or("axis", std::int64_t{0})}).front();
  const std::int64_t n = x.dims[axis];
  if (!x.rows || n == 0) RowCompiler::refuse(op, "looks for the place of no elements");
  View turned = x;
  turned.dims = x.dims.erased(axis).inserted(x.dims.rank() - 1, n);
  turned.strides = x.strides.erased(axis).inserted(x.dims.rank() - 1, x.strides[axis]);
  const View out = c.make(op.outputs[0]);
  const bool last = op.attributes.get_or("select_last", false);
  const auto function = [&]<class T>(std::type_identity<T>) -> RowFunction {
    return [n, last, outer = x.elements() / n](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = 0; i < outer; ++i)
          outputs[0].row<T>(row)[i] = static_cast<T>(cpu::extreme_place(inputs[0].row<T>(row) + i * n, n, greatest, last));
    };
  };
  c.apply(of_dtype(c, function), {c.contiguous(turned)}, {out});
}

/// 1 where the number of a place along the new axis is the index, else 0, and then the values for them.
void one_hot_rule(RowCompiler& c, const Op& op) {
  const Tensor* const values = c.program().constant(op.inputs[2]);
  const DDim dims = c.program().var(op.outputs[0]).type.shape->erased(0);
  View index = c.at(op.inputs[0]);
  if (values == nullptr || !index.rows) RowCompiler::refuse(op, "is in fused loops with values that are known");
  const int axis = c.axis_of(op, op.outputs[0], op.attributes.get_or("axis", std::int64_t{-1}));
  const std::int64_t depth = dims[axis];
  DDim along_axis = dims;
  for (int at = 0; at < dims.rank(); ++at) along_axis[at] = at == axis ? depth : 1;
  std::vector<float> numbers(static_cast<std::size_t>(depth));
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  index.dims = index.dims.inserted(axis, 1);
  index.strides = index.strides.inserted(axis, 0);
  // Negative indices count from the end.
  const View below = c.elementwise(binary_op(Binary::less), {index, c.number(0)}, index.dims);
  const View from_end = c.elementwise(binary_op(Binary::add), {index, c.number(static_cast<double>(depth))}, index.dims);
  RowOp choice;
  choice.kind = RowOp::Kind::where;
  const View place = c.elementwise(choice, {below, from_end, index}, index.dims);
  const View hot = c.elementwise(binary_op(Binary::equal), {place, c.literal(Tensor::from(numbers, along_axis))}, dims);
  c.elementwise(choice, {hot, c.number(values->select(0, 1).item()), c.number(values->select(0, 0).item())}, op.outputs[0]);
}

void norm(RowCompiler& c, const Op& op, RowOp::Kind kind, int axis) {
  const View x = c.contiguous(c.at(op.inputs[0]));
  RowOp made = along(kind, x, axis);
  const View out = c.make(op.outputs[0]);
  made.out = {out.reg, 0, made.inner, 1};
  made.epsilon = op.attributes.get_or("epsilon", 1e-5);
  for (std::size_t part = 1; kind == RowOp::Kind::layer_norm && part < 3; ++part) {
    if (!c.has(op, part)) continue;
    const View factor = c.at(op.inputs[part]);
    if (factor.rows || factor.elements() != made.inner)
      RowCompiler::refuse(op, "expected a scale and a bias for each element, the same for all rows");
    made.in[part] = c.operand(factor);
  }
  c.emit(made);
}

void softmax_rule(RowCompiler& c, const Op& op) {
  const int axis = last_axis(c, op, op.attributes.get_or("axis", std::int64_t{-1}));
  norm(c, op, op.type == "softmax" ? RowOp::Kind::softmax : RowOp::Kind::log_softmax, axis);
}

void layer_norm_rule(RowCompiler& c, const Op& op) {
  norm(c, op, RowOp::Kind::layer_norm, c.axis_of(op, op.inputs[0], op.attributes.get_or("axis", std::int64_t{-1})));
}

void layer_norm_gradient_rule(RowCompiler& c, const Op& op) {
  const int axis = c.axis_of(op, op.inputs[0], op.attributes.get_or("axis", std::int64_t{-1}));
  const View x = c.contiguous(c.at(op.inputs[0]));
  const View g = c.contiguous(c.at(op.inputs[2]));
  if (!g.rows || g.dims != x.dims) RowCompiler::refuse(op, "expected a gradient for each row");
  RowOp made = along(RowOp::Kind::layer_norm_gradient, x, axis);
  const View scale = c.at(op.inputs[1]);
  if (scale.rows || scale.elements() != made.inner) RowCompiler::refuse(op, "expected a scale for each element, the same for all rows");
  made.epsilon = op.attributes.get_or("epsilon", 1e-5);
  made.in[1] = c.operand(scale);
  made.in[2] = {g.reg, g.begin, made.inner, 1};
  made.out = {c.make(op.outputs[0]).reg, 0, made.inner, 1};
  made.out2 = {c.make(op.outputs[1]).reg, 0, made.inner, 1};
  c.emit(made);
}

// ---- Shapes ----

/// The same view when only axes of one element come or go.
std::optional<View> without_ones(const View& view, const DDim& dims) {
  View made = view;
  made.dims = made.strides = dims;
  int from = 0;
  for (int axis = 0; axis < dims.rank(); ++axis) {
    made.strides[axis] = 0;
    if (dims[axis] == 1) continue;
    while (from < view.dims.rank() && view.dims[from] == 1) ++from;
    if (from == view.dims.rank() || view.dims[from] != dims[axis]) return std::nullopt;
    made.strides[axis] = view.strides[from++];
  }
  while (from < view.dims.rank() && view.dims[from] == 1) ++from;
  return from == view.dims.rank() ? std::optional(made) : std::nullopt;
}

/// Extents change, elements stay as they lie.
void reshape_rule(RowCompiler& c, const Op& op) {
  const View x = c.at(op.inputs[0]);
  const DDim dims = c.program().var(op.outputs[0]).type.shape->erased(0);
  if (!x.rows || dims.elements() != x.elements()) RowCompiler::refuse(op, "moves elements from row to row");
  if (const auto same = without_ones(x, dims)) return c.bind(op.outputs[0], *same);
  View view = c.contiguous(x);
  view.dims = dims;
  view.strides = dims.row_major();
  c.bind(op.outputs[0], view);
}

/// Rows of a table at places that each row brings: integers that are known to lie inside, since a kernel of rows raises no error.
void gather_from_table(RowCompiler& c, const Op& op) {
  const Tensor& table = *c.program().constant(op.inputs[0]);
  if (op.attributes.get_or("axis", std::int64_t{0}) != 0 || table.rank() == 0 || table.dtype() != c.desc().dtype)
    RowCompiler::refuse(op, "is in fused loops along axis 0 of a table of weights");
  const std::int64_t extent = table.dim(0);
  if (c.most_of(op.inputs[1]) >= static_cast<double>(extent)) RowCompiler::refuse(op, "may look outside of its input");
  const View index = c.contiguous(c.at(op.inputs[1]));
  const View out = c.make(op.outputs[0]);
  const std::int64_t width = table.elements() / std::max<std::int64_t>(extent, 1);
  const std::int64_t count = index.elements();
  const auto function = [&]<class T>(std::type_identity<T>) -> RowFunction {
    return [extent, width, count](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = 0; i < count; ++i) {
          const auto given = static_cast<std::int64_t>(inputs[1].row<T>(row)[i]);
          const std::int64_t place = given < 0 ? given + extent : given;
          std::copy_n(inputs[0].row<T>(0) + place * width, width, outputs[0].row<T>(row) + i * width);
        }
    };
  };
  c.apply(of_dtype(c, function), {c.literal(table), index}, {out});
}

/// Places of a gather that are copied one by one, or a few at once.
constexpr std::int64_t most_places = 1024;

void gather_rule(RowCompiler& c, const Op& op) {
  const Tensor* index = c.program().constant(op.inputs[1]);
  if (index == nullptr && c.program().constant(op.inputs[0]) != nullptr) return gather_from_table(c, op);
  View view = c.at(op.inputs[0]);
  const int axis = c.axis_of(op, op.inputs[0], op.attributes.get_or("axis", std::int64_t{0}));
  if (index == nullptr || index->rank() > 1 || !view.rows || index->elements() == 0)
    RowCompiler::refuse(op, "is in fused loops at places that are known, in a line");
  const auto place = [&](std::int64_t i) {
    const std::int64_t found = (index->rank() == 0 ? *index : index->select(0, i)).item_int();
    if (found < -view.dims[axis] || found >= view.dims[axis]) RowCompiler::refuse(op, "looks outside of its input");
    return found < 0 ? found + view.dims[axis] : found;
  };
  const std::int64_t count = index->elements();
  // Places one step apart are a view; others are runs of such places.
  const auto run_of = [&](std::int64_t first, std::int64_t& last) {
    const std::int64_t step = first + 1 < count ? place(first + 1) - place(first) : 1;
    for (last = first + 1; last < count && place(last) - place(last - 1) == step; ++last);
    View run = view;
    run.begin += place(first) * view.strides[axis];
    run.strides[axis] *= step;
    run.dims[axis] = last - first;
    return run;
  };
  std::int64_t last = 0;
  const View whole = run_of(0, last);
  if (last < count) {
    if (count > most_places)
      RowCompiler::refuse(op, "is in fused loops at " + std::to_string(most_places) + " places, or at those one step apart");
    const View out = c.make(op.outputs[0]);
    for (std::int64_t first = 0; first < count; first = last) {
      const View run = run_of(first, last);
      c.copy(run, {true, out.reg, out.begin + first * out.strides[axis], run.dims, out.strides});
    }
    return;
  }
  view = whole;
  if (index->rank() == 0) {
    view.dims = view.dims.erased(axis);
    view.strides = view.strides.erased(axis);
  }
  c.bind(op.outputs[0], view);
}

void transpose_rule(RowCompiler& c, const Op& op) {
  const View x = c.at(op.inputs[0]);
  Ints perm = op.attributes.get_or("perm", Ints{});
  if (perm.empty())
    for (int axis = x.dims.rank(); axis >= 0; --axis) perm.push_back(axis);
  if (perm[0] != 0) RowCompiler::refuse(op, "moves the rows");
  View made = x;
  for (int axis = 0; axis < x.dims.rank(); ++axis) {
    const auto from = static_cast<int>(perm[static_cast<std::size_t>(axis) + 1]) - 1;
    made.dims[axis] = x.dims[from];
    made.strides[axis] = x.strides[from];
  }
  c.bind(op.outputs[0], made);
}

void split_rule(RowCompiler& c, const Op& op) {
  const View x = c.at(op.inputs[0]);
  const int axis = c.axis_of(op, op.inputs[0], op.attributes.get<std::int64_t>("axis"));
  std::int64_t begin = 0;
  for (const VarId output : op.outputs) {
    View part = x;
    part.dims[axis] = (*c.program().var(output).type.shape)[axis + 1];
    part.begin += begin * x.strides[axis];
    begin += part.dims[axis];
    c.bind(output, part);
  }
}

void slice_rule(RowCompiler& c, const Op& op) {
  View view = c.at(op.inputs[0]);
  const Ints& starts = op.attributes.get<Ints>("starts");
  Ints axes = op.attributes.get_or("axes", Ints{});
  const Ints steps = op.attributes.get_or("steps", Ints(starts.size(), 1));
  for (std::size_t i = axes.size(); axes.size() < starts.size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const int axis = c.axis_of(op, op.inputs[0], axes[i]);
    const std::int64_t extent = view.dims[axis];
    if (steps[i] < 1) RowCompiler::refuse(op, "runs backwards");
    const std::int64_t start = std::clamp<std::int64_t>(starts[i] < 0 ? starts[i] + extent : starts[i], 0, extent);
    view.begin += start * view.strides[axis];
    view.strides[axis] *= steps[i];
    view.dims[axis] = (*c.program().var(op.outputs[0]).type.shape)[axis + 1];
  }
  c.bind(op.outputs[0], view);
}

void concat_rule(RowCompiler& c, const Op& op) {
  const int axis = c.axis_of(op, op.outputs[0], op.attributes.get<std::int64_t>("axis"));
  const View out = c.make(op.outputs[0]);
  std::int64_t begin = 0;
  for (const VarId input : op.inputs) {
    View part = c.at(input);
    if (!part.rows && part.dims.rank() == out.dims.rank() + 1 && part.dims[0] == 1) {
      part.dims = part.dims.erased(0);
      part.strides = part.strides.erased(0);
    }
    if (part.dims.rank() != out.dims.rank()) RowCompiler::refuse(op, "joins rows with something else");
    c.copy(part, {true, out.reg, out.begin + begin * out.strides[axis], part.dims, out.strides});
    begin += part.dims[axis];
  }
}

void expand_rule(RowCompiler& c, const Op& op) {
  const View x = c.at(op.inputs[0]);
  const DDim dims = c.program().var(op.outputs[0]).type.shape->erased(0);
  if (!x.rows || x.dims.rank() != dims.rank()) RowCompiler::refuse(op, "stretches the rows");
  View made = x;
  for (int axis = 0; axis < dims.rank(); ++axis) {
    if (x.dims[axis] != dims[axis]) made.strides[axis] = 0;
    made.dims[axis] = dims[axis];
  }
  c.bind(op.outputs[0], made);
}

/// Numbers around every axis of `view`.
View surrounded(RowCompiler& c, const View& view, const Ints& before, const DDim& dims, double value) {
  const View made = c.make(dims);
  View number = c.number(value);
  number.dims = dims;
  number.strides = dims;
  for (int axis = 0; axis < dims.rank(); ++axis) number.strides[axis] = 0;
  c.copy(number, made);
  View inside = made;
  inside.dims = view.dims;
  for (int axis = 0; axis < dims.rank(); ++axis) inside.begin += before[static_cast<std::size_t>(axis)] * made.strides[axis];
  c.copy(view, inside);
  return made;
}

/// `view` with `before` and `behind` elements around its last axis: zeros, another number, or, reflected, those inside, from the edge on.
View padded(RowCompiler& c, const View& view, std::int64_t before, std::int64_t behind, bool reflect, double value) {
  if (before == 0 && behind == 0) return view;
  const int last = view.dims.rank() - 1;
  const std::int64_t n = view.dims[last];
  DDim dims = view.dims;
  dims[last] += before + behind;
  const View made = c.make(dims);
  const auto part = [&](std::int64_t begin, std::int64_t count) {
    View piece = made;
    piece.begin += begin;
    piece.dims[last] = count;
    return piece;
  };
  const auto side = [&](std::int64_t begin, std::int64_t count, std::int64_t first) {
    if (count == 0) return;
    View from = reflect ? view : c.number(value);
    if (reflect) {
      from.begin += first * view.strides[last];
      from.strides[last] = -view.strides[last];
    } else {
      from.strides = view.dims;
      for (int axis = 0; axis <= last; ++axis) from.strides[axis] = 0;
    }
    from.dims = view.dims;
    from.dims[last] = count;
    c.copy(from, part(begin, count));
  };
  side(0, before, before);
  c.copy(view, part(before, n));
  side(before + n, behind, n - 2);
  return made;
}

void pad_rule(RowCompiler& c, const Op& op) {
  const Ints& pads = op.attributes.get<Ints>("pads");
  const std::string mode = op.attributes.get_or("mode", std::string("constant"));
  const View x = c.at(op.inputs[0]);
  const auto rank = pads.size() / 2;
  if (rank < 2 || !x.rows || (mode != "constant" && mode != "reflect") ||
      std::any_of(pads.begin(), pads.end(), [](auto n) { return n < 0; }))
    RowCompiler::refuse(op, "of that kind is not in fused loops");
  if (pads[0] != 0 || pads[rank] != 0) RowCompiler::refuse(op, "adds rows");
  const double value = op.attributes.get_or("value", 0.0);
  bool last_alone = true;
  for (std::size_t axis = 1; axis + 1 < rank; ++axis) last_alone = last_alone && pads[axis] == 0 && pads[axis + rank] == 0;
  if (!last_alone) {
    if (mode == "reflect") RowCompiler::refuse(op, "reflects in fused loops along the last axis alone");
    const DDim dims = c.program().var(op.outputs[0]).type.shape->erased(0);
    return c.bind(op.outputs[0], surrounded(c, x, Ints(pads.begin() + 1, pads.begin() + static_cast<std::ptrdiff_t>(rank)), dims, value));
  }
  const std::int64_t before = pads[rank - 1];
  const std::int64_t behind = pads[2 * rank - 1];
  if (mode == "reflect" && std::max(before, behind) >= x.dims[-1]) RowCompiler::refuse(op, "reflects more than there is");
  c.bind(op.outputs[0], padded(c, x, before, behind, mode == "reflect", value));
}

// ---- Convolutions ----

/// The convolution in groups of x, which has its borders.
template <class T, class Index>
RowFunction grouped_conv(const View& x, const Tensor& weights, std::int64_t groups, const std::vector<WindowAxis>& axes) {
  const std::int64_t units = weights.dim(0), channels = weights.dim(1), k = weights.elements() / units;
  std::vector<Index> bases, offsets, places{0};
  for (std::int64_t unit = 0; unit < units; ++unit) bases.push_back(static_cast<Index>(unit / (units / groups) * channels * x.strides[0]));
  for (std::int64_t channel = 0; channel < channels; ++channel) offsets.push_back(static_cast<Index>(channel * x.strides[0]));
  const auto each = [](std::vector<Index>& all, std::int64_t count, std::int64_t step) {
    std::vector<Index> made;
    for (const Index one : all)
      for (std::int64_t i = 0; i < count; ++i) made.push_back(static_cast<Index>(one + i * step));
    all = std::move(made);
  };
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t step = x.strides[static_cast<int>(i) + 1];
    each(offsets, axes[i].taps, axes[i].dilation * step);
    each(places, axes[i].places, axes[i].stride * step);
  }
  return GroupedConv<T, Index>(std::move(bases), std::move(offsets), std::move(places),
                               weights.reshape(DDim{units, k}).permute({1, 0}).copy_to(CpuPlace{}).to_vector<T>());
}

/// Each place of the output is a product of the elements that it sees, channel by channel: a view where they lie side by side, else a copy.
void convolve(RowCompiler& c, const Op& op, const Ints& strides, const Ints& dilations, const Ints& pads) {
  const Tensor* weights = c.program().constant(op.inputs[1]);
  const auto groups = op.attributes.get_or("group", std::int64_t{1});
  if (weights == nullptr || weights->elements() == 0) RowCompiler::refuse(op, "is in fused loops with known weights");
  if (groups > 1 && weights->dtype() != c.desc().dtype) RowCompiler::refuse(op, "has groups, and other numbers than its loop");
  const View x = c.at(op.inputs[0]);
  const DDim dims = c.program().var(op.outputs[0]).type.shape->erased(0);  // units, places
  if (!x.rows || dims.elements() == 0 || x.elements() == 0) RowCompiler::refuse(op, "has nothing to look at");
  const std::int64_t units = dims[0], channels = x.dims[0], k = weights->elements() / units;
  std::vector<WindowAxis> axes;
  std::int64_t places = 1;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const int axis = static_cast<int>(i) + 1;
    // A stride or dilation that takes no step may be any number: products with it would not fit.
    const std::int64_t stride = dims[axis] > 1 ? strides[i] : 1, dilation = weights->dim(axis + 1) > 1 ? dilations[i] : 1;
    axes.push_back({x.dims[axis], dims[axis], weights->dim(axis + 1), stride, dilation, pads[i]});
    places *= dims[axis];
  }
  const Tensor flat = weights->is_contiguous() ? *weights : weights->copy_to(CpuPlace{});
  View out = c.make(DDim{places, units});
  if (groups > 1) {
    DDim wide = x.dims;
    for (std::size_t i = 0; i < axes.size(); ++i) wide[static_cast<int>(i) + 1] += pads[i] + pads[i + axes.size()];
    Ints before(pads.begin(), pads.begin() + std::ssize(axes));
    before.insert(before.begin(), 0);
    const View all = c.contiguous(wide == x.dims ? x : surrounded(c, x, before, wide, 0));
    // Elements of a row are counted in 32 bits where the lanes have as many.
    if (wide.elements() > std::numeric_limits<std::int32_t>::max()) RowCompiler::refuse(op, "has too many elements");
    c.apply(c.desc().dtype == DType::f64 ? grouped_conv<double, std::int64_t>(all, flat, groups, axes)
                                         : grouped_conv<float, std::int32_t>(all, flat, groups, axes),
            {all}, {out});
  } else {
    View seen;
    if (channels == 1 && axes.size() == 1) {
      const View wide = padded(c, x, pads[0], pads[1], false, 0);
      seen = {true, wide.reg, wide.begin, DDim{places, k}, DDim{axes[0].stride * wide.strides[1], axes[0].dilation * wide.strides[1]}};
    } else {
      seen = c.make(DDim{places, k});
      c.apply(WindowCopy(std::move(axes), channels, size_of(c.desc().dtype)), {c.contiguous(x)}, {seen});
    }
    c.product(seen, flat.reshape(DDim{units, k}).permute({1, 0}), out);
  }
  if (c.has(op, 2)) out = c.elementwise(binary_op(Binary::add), {out, c.at(op.inputs[2])}, out.dims);
  if (op.attributes.get_or("relu", false)) out = c.elementwise(unary_op(Unary::relu), {out}, out.dims);
  View made{true, out.reg, out.begin, dims, dims.row_major()};
  for (int axis = 1; axis < dims.rank(); ++axis) made.strides[axis] *= out.strides[0];
  made.strides[0] = out.strides[1];
  c.bind(op.outputs[0], made);
}

void conv1d_rule(RowCompiler& c, const Op& op) {
  convolve(c, op, {op.attributes.get_or("stride", std::int64_t{1})}, {op.attributes.get_or("dilation", std::int64_t{1})},
           op.attributes.get_or("pads", Ints{0, 0}));
}

void conv_rule(RowCompiler& c, const Op& op) {
  convolve(c, op, op.attributes.get<Ints>("strides"), op.attributes.get<Ints>("dilations"), op.attributes.get<Ints>("pads"));
}

}  // namespace

RowRule find_row_rule(const std::string& type) {
  static const std::map<std::string, RowRule> rules{{"gelu", gelu_rule},
                                                    {"pad", pad_rule},
                                                    {"gather", gather_rule},
                                                    {"embedding", gather_rule},
                                                    {"argmax", arg_rule<true>},
                                                    {"argmin", arg_rule<false>},
                                                    {"one_hot", one_hot_rule},
                                                    {"conv1d", conv1d_rule},
                                                    {"conv", conv_rule},
                                                    {"where", where_rule},
                                                    {"mod", mod_rule},
                                                    {"prelu", prelu_rule},
                                                    {"clip", clip_rule},
                                                    {"cast", cast_rule},
                                                    {"identity", same_rule},
                                                    {"drop_lod", same_rule},
                                                    {"sum_to", sum_to_rule},
                                                    {"matmul", matmul_rule},
                                                    {"gemm", gemm_rule},
                                                    {"quantize_rows", quantize_rule},
                                                    {"matmul_int8", matmul_int8_rule},
                                                    {"lstm_cell", lstm_cell_rule<2>},
                                                    {"lstm_cell_projected", lstm_cell_rule<1>},
                                                    {"lstm_gates", lstm_cell_rule<0>},
                                                    {"reduce", reduce_rule},
                                                    {"softmax", softmax_rule},
                                                    {"log_softmax", softmax_rule},
                                                    {"reshape", reshape_rule},
                                                    {"squeeze", reshape_rule},
                                                    {"unsqueeze", reshape_rule},
                                                    {"flatten", reshape_rule},
                                                    {"reshape_to", reshape_rule},
                                                    {"transpose", transpose_rule},
                                                    {"split", split_rule},
                                                    {"slice", slice_rule},
                                                    {"concat", concat_rule},
                                                    {"expand", expand_rule},
                                                    {"layer_norm", layer_norm_rule},
                                                    {"layer_norm_gradient", layer_norm_gradient_rule},
                                                    {"is_nan", is_nan_rule},
                                                    {"logical_not", logical_not_rule}};
  const auto rule = rules.find(type);
  if (rule != rules.end()) return rule->second;
  if (ops::find_unary(type) != nullptr) return unary_rule;
  return ops::find_binary(type) ? binary_rule : nullptr;
}

}  // namespace millrace
