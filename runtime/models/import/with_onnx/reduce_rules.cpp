// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/rules.h>

namespace millrace::importing {
namespace {

/// Axes were an attribute up to opset 17; for ReduceSum up to 12.
void reduce(Importer& to, const Node& node, const char* kind) {
  const bool as_input = to.opset() >= 18 || (to.opset() >= 13 && node.op() == "ReduceSum");
  const Ints axes = as_input ? to.needed_integers(node, 1, {}) : node.integers("axes").value_or(Ints{});
  const VarId x = to.in(node, 0);
  const bool kept_whole = node.flag("noop_with_empty_axes", false);
  const bool keeps_axes = node.flag("keepdims", true);
  if (axes.empty() && kept_whole) return to.give(node, "identity", {x});
  to.give(node, "reduce", {x}, {{"kind", std::string(kind)}, {"axes", axes}, {"keepdims", keeps_axes}});
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
  to.give(node, op, {x, to.in(node, 1), to.in_or_none(node, 2)}, {{"axis", axis}, {"epsilon", epsilon}});
  if (!node.wants(1) && !node.wants(2)) return;
  const Ints axes = axes_from(to, x, axis);
  const auto mean_of = [&](VarId of) {
    return to.emit1("reduce", {of}, {{"kind", std::string("mean")}, {"axes", axes}, {"keepdims", true}});
  };
  const VarId mean = mean_of(x);
  to.bind(node, 1, mean);
  const VarId apart = to.emit1("sub", {x, mean});
  const VarId variance = mean_of(to.emit1("mul", {apart, apart}));
  const VarId deviation = to.emit1("sqrt", {to.emit1("add", {variance, to.literal(scalar_of(to.type(x).dtype, epsilon))})});
  to.bind(node, 2, to.emit1("reciprocal", {deviation}));
}

void cumsum(Importer& to, const Node& node, const char* op) {
  const Ints axis = to.needed_integers(node, 1, {});
  if (axis.size() != 1) throw ProgramError("expected one axis, found " + std::to_string(axis.size()));
  to.give(node, op, {to.in(node, 0)},
          {{"axis", axis[0]}, {"exclusive", node.flag("exclusive", false)}, {"reverse", node.flag("reverse", false)}});
}

constexpr Rule rules[] = {
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
};

}  // namespace

std::span<const Rule> reduce_rules() { return rules; }

}  // namespace millrace::importing
