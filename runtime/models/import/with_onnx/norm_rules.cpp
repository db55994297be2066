// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

namespace millrace::importing {
namespace {

void train_batch_norm(Importer& to, const Node& node);

/// Gives what `op` makes of values in the dtype of `f`, in `dtype`.
void give_as(Importer& to, const Node& node, const Formula& f, const char* op, VarId a, VarId b, DType dtype) {
  if (f.dtype() == dtype) return to.give(node, op, {a, b});
  to.give(node, "cast", {f.op(op, a, b)}, {{"to", dtype}});
}

/// (x − mean) · (scale / √(variance + ε)) + bias, with one number per channel (axis 1).
void batch_norm(Importer& to, const Node& node, const char*) {
  if (node.flag("training_mode", false)) return train_batch_norm(to, node);
  if (to.opset() < 7 && !node.flag("is_test", false)) throw UnsupportedError("attribute is_test: expected 1, found 0");
  if (!node.flag("spatial", true)) throw UnsupportedError("attribute spatial: expected 1, found 0");
  for (std::size_t output = 1; output < node.outputs(); ++output)
    if (node.wants(output))
      throw UnsupportedError("expected the normalised output alone, found a use of " + internal::printable(node.output(output)));
  const DType dtype = to.type(to.in(node, 0)).dtype;
  const Formula f(to, computed_in(dtype));
  const auto in = [&](std::size_t input) { return f.taken(to.in(node, input)); };
  const VarId x = in(0);
  Ints shape(static_cast<std::size_t>(std::max(to.rank(x) - 1, 1)), 1);
  shape[0] = -1;
  const auto per_channel = [&](VarId var) { return f.reshaped(var, shape); };
  const VarId deviation = f.op("sqrt", f.plus(in(4), node.real("epsilon", 1e-5f)));
  const VarId factor = per_channel(f.over(in(1), deviation));
  const VarId centred = f.minus(x, per_channel(in(3)));
  give_as(to, node, f, "add", f.times(centred, factor), per_channel(in(2)), dtype);
}

/// (x − mean) / √(variance + ε) over `axes`, of x in the dtype of `f`.
VarId normalized(const Formula& f, VarId x, const Ints& axes, double epsilon) {
  const VarId centred = f.minus(x, f.reduced("mean", x, axes, true));
  const VarId variance = f.reduced("mean", f.times(centred, centred), axes, true);
  return f.over(centred, f.op("sqrt", f.plus(variance, epsilon)));
}

/// Axes [begin, rank).
Ints axes_behind(int begin, int rank) {
  Ints axes;
  for (int axis = begin; axis < rank; ++axis) axes.push_back(axis);
  return axes;
}

/// [C], in the dtype of `f`, for axis 1 of `rank` axes.
VarId per_channel(const Formula& f, VarId x, int rank) {
  Ints shape(static_cast<std::size_t>(std::max(rank - 1, 1)), 1);
  shape[0] = -1;
  return f.reshaped(f.taken(x), shape);
}

/// Normalizes by the mean and variance of the batch, towards which the running ones move.
void train_batch_norm(Importer& to, const Node& node) {
  const DType dtype = to.type(to.in(node, 0)).dtype;
  const Formula f(to, computed_in(dtype));
  const VarId x = f.taken(to.in(node, 0));
  const int rank = to.rank(x);
  Ints axes = axes_behind(2, std::max(rank, 2));
  axes.insert(axes.begin(), 0);
  const VarId mean = f.reduced("mean", x, axes, true);
  const VarId centred = f.minus(x, mean);
  const VarId variance = f.reduced("mean", f.times(centred, centred), axes, true);
  const VarId root = f.op("sqrt", f.plus(variance, node.real("epsilon", 1e-5f)));
  const VarId scaled = f.times(f.over(centred, root), per_channel(f, to.in(node, 1), rank));
  give_as(to, node, f, "add", scaled, per_channel(f, to.in(node, 2), rank), dtype);
  const double kept = node.real("momentum", 0.9f);
  const auto moved = [&](std::size_t running, VarId found) {
    const VarId given = to.in(node, running);
    const VarId old = f.times(f.taken(given), kept);
    return f.cast(f.plus(old, f.times(f.reshaped(found, {-1}), 1 - kept)), to.type(given).dtype);
  };
  if (node.wants(1)) to.bind(node, 1, moved(3, mean));
  if (node.wants(2)) to.bind(node, 2, moved(4, variance));
}

void instance_norm(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  if (rank < 3) throw ProgramError("expected [N, C, D1, …], found " + to.type(x).to_string());
  const Formula f(to, computed_in(to.type(x).dtype));
  const VarId made = normalized(f, f.taken(x), axes_behind(2, rank), node.real("epsilon", 1e-5f));
  const VarId scaled = f.times(made, per_channel(f, to.in(node, 1), rank));
  give_as(to, node, f, "add", scaled, per_channel(f, to.in(node, 2), rank), to.type(x).dtype);
}

/// Groups of channels; scale and bias are of groups up to opset 20, of channels from 21 on.
void group_norm(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  const std::int64_t groups = node.integer("num_groups", 0);
  if (rank < 3) throw ProgramError("expected [N, C, D1, …], found " + to.type(x).to_string());
  if (groups < 1) throw ProgramError("attribute num_groups: expected 1 or more, found " + std::to_string(groups));
  // From opset 21 on the scale has a number for each channel, and may say how many there are.
  const bool counted = to.opset() >= 21 && to.rank(to.in(node, 1)) == 1 && (*to.type(x).shape)[1] < 0;
  std::vector<Extent> apart{
      extent_at(to, x, 0), {groups, no_var}, counted ? divided(to, to.in(node, 1), 0, groups) : divided(to, x, 1, groups)};
  for (int axis = 2; axis < rank; ++axis) apart.push_back(extent_at(to, x, axis));
  const DType dtype = to.type(x).dtype;
  const Formula f(to, computed_in(dtype));
  const VarId grouped = f.taken(reshaped(to, x, apart));
  VarId made = normalized(f, grouped, axes_behind(2, rank + 1), node.real("epsilon", 1e-5f));
  const auto joined = [&](VarId y) { return to.emit1("reshape_to", {y, to.emit1("shape", {x})}, {{"allowzero", true}}); };
  if (to.opset() < 21) {
    made = f.times(made, per_channel(f, to.in(node, 1), rank + 1));
    made = f.plus(made, per_channel(f, to.in(node, 2), rank + 1));
    return to.give(node, "identity", {f.cast(joined(made), dtype)});
  }
  const VarId scaled = f.times(joined(made), per_channel(f, to.in(node, 1), rank));
  give_as(to, node, f, "add", scaled, per_channel(f, to.in(node, 2), rank), dtype);
}

/// Over `axes`, without scale: (x − mean) / (deviation + 1e-9).
void mean_variance(Importer& to, const Node& node, const char*) {
  const DType dtype = to.type(to.in(node, 0)).dtype;
  const Formula f(to, computed_in(dtype));
  const VarId x = f.taken(to.in(node, 0));
  const Ints axes = node.integers("axes").value_or(Ints{0, 2, 3});
  // ONNX's body takes the mean of squares less the square of the mean, which cancels.
  const VarId centred = f.minus(x, f.reduced("mean", x, axes, true));
  const VarId deviation = f.op("sqrt", f.reduced("mean", f.times(centred, centred), axes, true));
  give_as(to, node, f, "div", centred, f.plus(deviation, 1e-9), dtype);
}

void lp_norm(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const std::int64_t p = node.integer("p", 2);
  if (p != 1 && p != 2) throw ProgramError("attribute p: expected 1 or 2, found " + std::to_string(p));
  const Formula f(to, to.type(x).dtype);
  const VarId norm = f.reduced(p == 1 ? "l1" : "l2", x, {node.integer("axis", -1)}, true);
  // A vector of zeros stays one.
  to.give(node, "div", {x, f.where(f.op("equal", norm, 0.0), f.number(1), norm)});
}

/// x / √(mean of squares + ε) · scale, over `axis` and those behind it. ONNX Runtime's SimplifiedLayerNormalization gives the factor, too.
void rms_norm(Importer& to, const Node& node, const char*) {
  const VarId scale = to.in(node, 1);
  const Formula f(to, computed_in(to.type(to.in(node, 0)).dtype));
  const VarId x = f.taken(to.in(node, 0));
  const int rank = to.rank(x);
  const Ints axes = axes_behind(axis_of("attribute axis", node.integer("axis", -1), rank), rank);
  const VarId root = f.op("sqrt", f.plus(f.reduced("mean", f.times(x, x), axes, true), node.real("epsilon", 1e-5f)));
  give_as(to, node, f, "mul", f.over(x, root), f.taken(scale), to.type(scale).dtype);
  if (node.wants(1)) to.bind(node, 1, f.op("reciprocal", root));
}

constexpr Rule norm_table[] = {
    {"BatchNormalization", batch_norm},
    {"InstanceNormalization", instance_norm},
    {"GroupNormalization", group_norm},
    {"MeanVarianceNormalization", mean_variance},
    {"LpNormalization", lp_norm},
    {"RMSNormalization", rms_norm},
    {"SimplifiedLayerNormalization", rms_norm},
};

}  // namespace

std::span<const Rule> norm_rules() { return norm_table; }

}  // namespace millrace::importing
