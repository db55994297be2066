// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/models/import/with_onnx/axes.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

namespace millrace::importing {
namespace {

/// Kinds whose result for integers is no integer: ONNX has it in their type, cut off.
bool gives_fractions(const std::string& kind) { return kind == "l2" || kind == "log_sum" || kind == "log_sum_exp"; }

/// `fold` of `x`; of integers in f64 where the kind gives fractions, cut off.
template <class Fold>
VarId as_integers(Importer& to, VarId x, const std::string& kind, Fold fold) {
  const DType dtype = to.type(x).dtype;
  if (is_floating(dtype) || !gives_fractions(kind)) return fold(x);
  return to.emit1("cast", {fold(to.emit1("cast", {x}, {{"to", DType::f64}}))}, {{"to", dtype}});
}

/// Reductions of one element where no axis is reduced. Integers that stay as they are, or lose their sign, are exact.
VarId of_each(Importer& to, VarId x, const std::string& kind) {
  if (kind == "l1" || kind == "l2") return to.emit1("abs", {x});
  if (kind == "sum_square") return to.emit1("mul", {x, x});
  if (kind == "log_sum") return as_integers(to, x, kind, [&](VarId wide) { return to.emit1("log", {wide}); });
  return x;
}

VarId product_of(Importer& to, VarId list) {
  return to.emit1("reduce", {list}, {{"kind", std::string("prod")}, {"axes", Ints{0}}, {"keepdims", true}});
}

/// The attributes of a reduction of `x`. Where a run may find nothing to fold, max and min give the ends of the dtype, as ONNX says, and a mean of integers 0,
/// as ONNX Runtime has it.
Attributes reduction(Importer& to, VarId x, const std::string& kind, const Ints& axes, bool keeps_axes) {
  Attributes made{{"kind", kind}, {"axes", axes}, {"keepdims", keeps_axes}};
  const std::optional<DDim>& shape = to.type(x).shape;
  const bool some = shape && std::all_of(shape->begin(), shape->end(), [](std::int64_t extent) { return extent > 0; });
  const auto counts = [&](std::int64_t axis) { return (*shape)[axis_of("axes", axis, shape->rank())] > 0; };
  const bool folds = some || (shape && !axes.empty() && std::all_of(axes.begin(), axes.end(), counts));
  const bool undefined = kind == "max" || kind == "min" || (kind == "mean" && !is_floating(to.type(x).dtype));
  if (undefined && !folds) made.set("empty", true);
  return made;
}

/// Axes that a run computes go to the end, where they are one.
VarId reduced_by(Importer& to, VarId x, NamedAxes& axes, const std::string& kind, bool keeps_axes) {
  const Attributes first{{"axis", std::int64_t{0}}};
  const VarId gone = axes.named(), kept = axes.others(), extents = to.emit1("shape", {x});
  const VarId left = to.emit1("gather", {extents, kept}, first);
  const VarId turned = to.emit1("transpose_by", {x, to.emit1("concat", {kept, gone}, first)});
  const VarId dims = to.emit1("concat", {product_of(to, left), product_of(to, to.emit1("gather", {extents, gone}, first))}, first);
  const VarId matrix = to.emit1("reshape_to", {turned, dims}, {{"allowzero", true}});
  const VarId made = to.emit1("reduce", {matrix}, reduction(to, matrix, kind, {1}, false));
  const VarId shape = keeps_axes ? to.emit1("where", {axes.mask(), number(to, 1), extents}) : left;
  const std::int64_t count = axes.count();
  const std::int64_t rank = keeps_axes ? to.rank(x) : count > 0 ? to.rank(x) - count : -1;
  return with_rank(to, to.emit1("reshape_to", {made, shape}, {{"allowzero", true}}), rank);
}

void reduce_by_attribute(Importer& to, const Node& node, const char* kind, VarId x, const Ints& axes, bool keeps_axes) {
  if (is_floating(to.type(x).dtype) || !gives_fractions(kind))
    return to.give(node, "reduce", {x}, reduction(to, x, kind, axes, keeps_axes));
  const auto fold = [&](VarId wide) { return to.emit1("reduce", {wide}, reduction(to, wide, kind, axes, keeps_axes)); };
  to.give(node, "identity", {as_integers(to, x, kind, fold)});
}

void reduce_in_run(Importer& to, const Node& node, const char* kind, VarId x) {
  const bool whole = node.flag("noop_with_empty_axes", false);
  const bool keeps_axes = node.flag("keepdims", true);
  const VarId list = list_input(to, node, 1);
  if ((*to.type(list).shape)[0] == 0) {
    if (whole) return to.give(node, "identity", {of_each(to, x, kind)});
    return reduce_by_attribute(to, node, kind, x, {}, keeps_axes);
  }
  NamedAxes axes(to, list, to.rank(x));
  if (!whole) axes.all_if_none();
  to.give(node, "identity", {as_integers(to, x, kind, [&](VarId wide) { return reduced_by(to, wide, axes, kind, keeps_axes); })});
}

/// Axes were an attribute up to opset 17; for ReduceSum up to 12.
void reduce(Importer& to, const Node& node, const char* kind) {
  const bool as_input = to.opset() >= 18 || (to.opset() >= 13 && node.op() == "ReduceSum");
  const VarId x = to.in(node, 0);
  if (as_input && node.has(1) && !to.known_integers(node, 1)) return reduce_in_run(to, node, kind, x);
  const Ints axes = as_input ? to.needed_integers(node, 1, {}) : node.integers("axes").value_or(Ints{});
  const bool kept_whole = node.flag("noop_with_empty_axes", false);
  const bool keeps_axes = node.flag("keepdims", true);
  if (axes.empty() && kept_whole) return to.give(node, "identity", {of_each(to, x, kind)});
  reduce_by_attribute(to, node, kind, x, axes, keeps_axes);
}

void pick(Importer& to, const Node& node, const char* op) {
  to.give(node, op, {to.in(node, 0)},
          {{"axis", node.integer("axis", 0)},
           {"keepdims", node.flag("keepdims", true)},
           {"select_last", node.flag("select_last_index", false)}});
}

/// Up to opset 12 the axes from `axis` on were one: the softmax of a matrix.
void softmax(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  if (to.opset() >= 13) return to.give(node, op, {x}, {{"axis", node.integer("axis", -1)}});
  const std::int64_t axis = node.integer("axis", 1);
  if (axis == -1 || axis == to.rank(x) - 1) return to.give(node, op, {x}, {{"axis", std::int64_t{-1}}});
  const VarId matrix = to.emit1("flatten", {x}, {{"axis", axis}});
  const VarId made = to.emit1(op, {matrix}, {{"axis", std::int64_t{-1}}});
  to.give(node, "reshape_to", {made, to.emit1("shape", {x})}, {{"allowzero", true}});
}

/// The axes from `axis` to the last.
Ints axes_from(Importer& to, VarId x, std::int64_t axis) {
  if (axis >= 0) axis -= to.rank(x);
  if (axis < -max_rank)
    throw ProgramError("attribute axis: expected -" + std::to_string(max_rank) + " or more, found " + std::to_string(axis));
  Ints axes;
  for (; axis < 0; ++axis) axes.push_back(axis);
  return axes;
}

void layer_norm(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  const std::int64_t axis = node.integer("axis", -1);
  const double epsilon = node.real("epsilon", 1e-5f);
  node.expect_integer("stash_type", onnx::TensorProto::FLOAT);
  const Ints axes = axes_from(to, x, axis);
  const VarId scale = to.in(node, 1), bias = to.in_or_none(node, 2);
  const int normalised = static_cast<int>(axes.size());
  if (to.rank(scale) > normalised || (bias != no_var && to.rank(bias) > normalised)) {  // they broadcast to all of X
    const Formula f(to, to.type(x).dtype);
    const VarId made = f.times(to.emit1(op, {x, f.number(1)}, {{"axis", axis}, {"epsilon", epsilon}}), scale);
    to.give(node, "identity", {bias == no_var ? made : f.plus(made, bias)});
  } else {
    to.give(node, op, {x, scale, bias}, {{"axis", axis}, {"epsilon", epsilon}});
  }
  if (!node.wants(1) && !node.wants(2)) return;
  const Formula f(to, computed_in(to.type(x).dtype));
  const VarId wide = f.taken(x), mean = f.reduced("mean", wide, axes, true);
  to.bind(node, 1, mean);
  const VarId apart = f.minus(wide, mean);
  const VarId deviation = f.op("sqrt", f.plus(f.reduced("mean", f.times(apart, apart), axes, true), epsilon));
  to.bind(node, 2, f.op("reciprocal", deviation));
}

void cumsum(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  Attributes attributes{{"exclusive", node.flag("exclusive", false)}, {"reverse", node.flag("reverse", false)}};
  const std::optional<Ints> axis = to.known_integers(node, 1);
  if (!axis) {
    const VarId at = to.emit1("reshape", {whole_numbers(to, to.in(node, 1))}, {{"shape", Ints{}}});
    attributes.set("axis", std::int64_t{-1});
    return to.give(node, "identity", {swapped_with_last(to, to.emit1(op, {swapped_with_last(to, x, at)}, attributes), at)});
  }
  if (axis->size() != 1) throw ProgramError("expected one axis, found " + std::to_string(axis->size()));
  attributes.set("axis", axis->front());
  to.give(node, op, {x}, attributes);
}

/// Along the last axis: the product of the elements up to each, or from each on; those that do not count are 1.
VarId running_products(Importer& to, VarId x, bool exclusive, bool reverse) {
  const VarId count = extent_of(to, x, -1);
  const VarId i = to.emit1("range", {number(to, 0), count, number(to, 1)});
  const VarId row = to.emit1("unsqueeze", {i}, {{"axes", Ints{1}}});
  const char* order = reverse ? (exclusive ? "greater" : "greater_equal") : (exclusive ? "less" : "less_equal");
  const VarId counts = to.emit1(order, {i, row});
  const VarId factors =
      to.emit1("where", {counts, to.emit1("unsqueeze", {x}, {{"axes", Ints{-2}}}), to.literal(scalar_of(to.type(x).dtype, 1))});
  return to.emit1("reduce", {factors}, {{"kind", std::string("prod")}, {"axes", Ints{-1}}, {"keepdims", false}});
}

void cumprod(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const VarId axis = to.emit1("reshape", {whole_numbers(to, to.in(node, 1))}, {{"shape", Ints{}}});
  const bool exclusive = node.flag("exclusive", false), reverse = node.flag("reverse", false);
  to.give(node, "identity", {swapped_with_last(to, running_products(to, swapped_with_last(to, x, axis), exclusive, reverse), axis)});
}

constexpr Rule reduce_table[] = {
    {"ReduceSum", reduce, "sum"},
    {"ReduceMean", reduce, "mean"},
    {"ReduceMax", reduce, "max"},
    {"ReduceMin", reduce, "min"},
    {"ReduceProd", reduce, "prod"},
    {"ReduceL1", reduce, "l1"},
    {"ReduceL2", reduce, "l2"},
    {"ReduceSumSquare", reduce, "sum_square"},
    {"ReduceLogSum", reduce, "log_sum"},
    {"ReduceLogSumExp", reduce, "log_sum_exp"},
    {"ArgMax", pick, "argmax"},
    {"ArgMin", pick, "argmin"},
    {"Softmax", softmax, "softmax"},
    {"LogSoftmax", softmax, "log_softmax"},
    {"LayerNormalization", layer_norm, "layer_norm"},
    {"CumSum", cumsum, "cumsum"},
    {"CumProd", cumprod},
};

}  // namespace

std::span<const Rule> reduce_rules() { return reduce_table; }

}  // namespace millrace::importing
