// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

namespace millrace::importing {
namespace {

void train_batch_norm(Importer& to, const Node& node);

/// (x − mean) · (scale / √(variance + ε)) + bias, with one number per channel (axis 1).
void batch_norm(Importer& to, const Node& node, const char*) {
  if (node.flag("training_mode", false)) return train_batch_norm(to, node);
  if (to.opset() < 7 && !node.flag("is_test", false)) throw UnsupportedError("attribute is_test: expected 1, found 0");
  if (!node.flag("spatial", true)) throw UnsupportedError("attribute spatial: expected 1, found 0");
  for (std::size_t output = 1; output < node.outputs(); ++output)
    if (node.wants(output))
      throw UnsupportedError("expected the normalised output alone, found a use of " + internal::printable(node.output(output)));
  const VarId x = to.in(node, 0);
  Ints shape(static_cast<std::size_t>(std::max(to.rank(x) - 1, 1)), 1);
  shape[0] = -1;
  const auto per_channel = [&](VarId var) { return to.emit1("reshape", {var}, {{"shape", shape}}); };
  const VarId epsilon = to.literal(scalar_of(to.type(to.in(node, 4)).dtype, node.real("epsilon", 1e-5f)));
  const VarId deviation = to.emit1("sqrt", {to.emit1("add", {to.in(node, 4), epsilon})});
  const VarId factor = per_channel(to.emit1("div", {to.in(node, 1), deviation}));
  const VarId centred = to.emit1("sub", {x, per_channel(to.in(node, 3))});
  to.give(node, "add", {to.emit1("mul", {centred, factor}), per_channel(to.in(node, 2))});
}

VarId reduced(Importer& to, const char* kind, VarId x, const Ints& axes) {
  return to.emit1("reduce", {x}, {{"kind", std::string(kind)}, {"axes", axes}, {"keepdims", true}});
}

VarId literal_like(Importer& to, VarId x, double value) { return to.literal(scalar_of(to.type(x).dtype, value)); }

/// (x − mean) / √(variance + ε) over `axes`.
VarId normalized(Importer& to, VarId x, const Ints& axes, double epsilon) {
  const VarId centred = to.emit1("sub", {x, reduced(to, "mean", x, axes)});
  const VarId variance = reduced(to, "mean", to.emit1("mul", {centred, centred}), axes);
  return to.emit1("div", {centred, to.emit1("sqrt", {to.emit1("add", {variance, literal_like(to, x, epsilon)})})});
}

/// Axes [begin, rank).
Ints axes_behind(int begin, int rank) {
  Ints axes;
  for (int axis = begin; axis < rank; ++axis) axes.push_back(axis);
  return axes;
}

/// [C] for axis 1 of `rank` axes.
VarId per_channel(Importer& to, VarId x, int rank) {
  Ints shape(static_cast<std::size_t>(std::max(rank - 1, 1)), 1);
  shape[0] = -1;
  return to.emit1("reshape", {x}, {{"shape", shape}});
}

/// By the mean and variance of the batch, which the running ones move towards.
void train_batch_norm(Importer& to, const Node& node) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  Ints axes = axes_behind(2, std::max(rank, 2));
  axes.insert(axes.begin(), 0);
  const VarId mean = reduced(to, "mean", x, axes);
  const VarId centred = to.emit1("sub", {x, mean});
  const VarId variance = reduced(to, "mean", to.emit1("mul", {centred, centred}), axes);
  const VarId root = to.emit1("sqrt", {to.emit1("add", {variance, literal_like(to, x, node.real("epsilon", 1e-5f))})});
  const VarId scaled = to.emit1("mul", {to.emit1("div", {centred, root}), per_channel(to, to.in(node, 1), rank)});
  to.give(node, "add", {scaled, per_channel(to, to.in(node, 2), rank)});
  const double kept = node.real("momentum", 0.9f);
  const auto moved = [&](std::size_t running, VarId found) {
    const VarId old = to.emit1("mul", {to.in(node, running), literal_like(to, x, kept)});
    const VarId now = to.emit1("mul", {to.emit1("reshape", {found}, {{"shape", Ints{-1}}}), literal_like(to, x, 1 - kept)});
    return to.emit1("add", {old, now});
  };
  if (node.wants(1)) to.bind(node, 1, moved(3, mean));
  if (node.wants(2)) to.bind(node, 2, moved(4, variance));
}

void instance_norm(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  if (rank < 3) throw ProgramError("expected [N, C, D1, …], found " + to.type(x).to_string());
  const VarId made = normalized(to, x, axes_behind(2, rank), node.real("epsilon", 1e-5f));
  const VarId scaled = to.emit1("mul", {made, per_channel(to, to.in(node, 1), rank)});
  to.give(node, "add", {scaled, per_channel(to, to.in(node, 2), rank)});
}

/// Groups of channels; scale and bias are of groups up to opset 20, of channels from 21 on.
void group_norm(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  const std::int64_t groups = node.integer("num_groups", 0);
  const std::int64_t channels = rank < 3 ? DDim::unknown : (*to.type(x).shape)[1];
  if (channels < 0) throw UnsupportedError("expected [N, C, D1, …] with a known number of channels, found " + to.type(x).to_string());
  if (groups < 1 || channels % groups != 0)
    throw ProgramError("attribute num_groups: expected a divisor of " + std::to_string(channels) + ", found " + std::to_string(groups));
  std::vector<Extent> apart{extent_at(to, x, 0), {groups, no_var}, {channels / groups, no_var}};
  for (int axis = 2; axis < rank; ++axis) apart.push_back(extent_at(to, x, axis));
  const VarId grouped = reshaped(to, x, apart);
  VarId made = normalized(to, grouped, axes_behind(2, rank + 1), node.real("epsilon", 1e-5f));
  const auto joined = [&](VarId y) { return to.emit1("reshape_to", {y, to.emit1("shape", {x})}, {{"allowzero", true}}); };
  if (to.opset() < 21) {
    made = to.emit1("mul", {made, per_channel(to, to.in(node, 1), rank + 1)});
    made = to.emit1("add", {made, per_channel(to, to.in(node, 2), rank + 1)});
    return to.give(node, "identity", {joined(made)});
  }
  const VarId scaled = to.emit1("mul", {joined(made), per_channel(to, to.in(node, 1), rank)});
  to.give(node, "add", {scaled, per_channel(to, to.in(node, 2), rank)});
}

/// Over `axes`, without scale: (x − mean) / (deviation + 1e-9).
void mean_variance(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const Ints axes = node.integers("axes").value_or(Ints{0, 2, 3});
  const VarId mean = reduced(to, "mean", x, axes);
  const VarId squares = reduced(to, "mean", to.emit1("mul", {x, x}), axes);
  const VarId deviation = to.emit1("sqrt", {to.emit1("sub", {squares, to.emit1("mul", {mean, mean})})});
  to.give(node, "div", {to.emit1("sub", {x, mean}), to.emit1("add", {deviation, literal_like(to, x, 1e-9)})});
}

void lp_norm(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const std::int64_t p = node.integer("p", 2);
  if (p != 1 && p != 2) throw ProgramError("attribute p: expected 1 or 2, found " + std::to_string(p));
  const VarId norm = reduced(to, p == 1 ? "l1" : "l2", x, {node.integer("axis", -1)});
  // A vector of zeros stays one.
  const VarId zero = to.emit1("equal", {norm, literal_like(to, x, 0)});
  to.give(node, "div", {x, to.emit1("where", {zero, literal_like(to, x, 1), norm})});
}

/// x / √(mean of squares + ε) · scale, over `axis` and those behind it. ONNX Runtime's SimplifiedLayerNormalization gives the factor, too.
void rms_norm(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  const Ints axes = axes_behind(axis_of("attribute axis", node.integer("axis", -1), rank), rank);
  const VarId squares = reduced(to, "mean", to.emit1("mul", {x, x}), axes);
  const VarId root = to.emit1("sqrt", {to.emit1("add", {squares, literal_like(to, x, node.real("epsilon", 1e-5f))})});
  to.give(node, "mul", {to.emit1("div", {x, root}), to.in(node, 1)});
  if (node.wants(1)) to.bind(node, 1, to.emit1("reciprocal", {root}));
}

constexpr Rule rules[] = {
    {"BatchNormalization", batch_norm},
    {"InstanceNormalization", instance_norm},
    {"GroupNormalization", group_norm},
    {"MeanVarianceNormalization", mean_variance},
    {"LpNormalization", lp_norm},
    {"RMSNormalization", rms_norm},
    {"SimplifiedLayerNormalization", rms_norm},
};

}  // namespace

std::span<const Rule> norm_rules() { return rules; }

}  // namespace millrace::importing
