// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/import/internal/printable.h>
#include <millrace/runtime/import/with_onnx/rules.h>

namespace millrace::importing {
namespace {

void matmul(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0), to.in(node, 1)}); }

void gemm(Importer& to, const Node& node, const char* op) {
  to.give(node, op, {to.in(node, 0), to.in(node, 1), to.in_or_none(node, 2)},
          {{"alpha", node.real("alpha", 1)},
           {"beta", node.real("beta", 1)},
           {"trans_a", node.integer("transA", 0) != 0},
           {"trans_b", node.integer("transB", 0) != 0}});
}

/// Beyond this nothing is a window; products of two such numbers fit.
constexpr std::int64_t largest_window = std::int64_t{1} << 30;

/// The one number of an attribute that has a number per axis.
std::int64_t of_one_axis(const Node& node, const std::string& name, std::int64_t otherwise) {
  const std::optional<Ints> values = node.integers(name);
  if (!values) return otherwise;
  if (values->size() != 1)
    throw UnsupportedError("expected a convolution along one axis, found " + std::to_string(values->size()) + " " + name);
  if (values->front() < 1 || values->front() > largest_window)
    throw ParseError("attribute " + name + ": expected 1 to " + std::to_string(largest_window) + ", found " +
                     std::to_string(values->front()));
  return values->front();
}

/// Pads of one axis, from `pads` or as `auto_pad` says.
Ints conv_pads(Importer& to, const Node& node, VarId x, std::int64_t kernel, std::int64_t stride, std::int64_t dilation) {
  const std::string automatic = node.text("auto_pad", "NOTSET");
  if (automatic == "VALID") return {0, 0};
  if (automatic == "NOTSET") {
    const Ints pads = node.integers("pads").value_or(Ints{0, 0});
    if (pads.size() != 2) throw UnsupportedError("expected 2 pads, found " + std::to_string(pads.size()));
    return pads;
  }
  if (automatic != "SAME_UPPER" && automatic != "SAME_LOWER")
    throw ParseError("attribute auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, found another word");
  // As many outputs as inputs, divided by the stride and rounded up.
  const std::int64_t window = (kernel - 1) * dilation + 1;
  const std::int64_t length = to.type(x).rank() == 3 ? (*to.type(x).shape)[2] : DDim::unknown;
  if (kernel < 0 || (stride != 1 && length < 0))
    throw UnsupportedError("auto_pad: expected extents that the file holds, found " + to.type(x).to_string());
  const std::int64_t total =
      stride == 1 ? window - 1 : std::max<std::int64_t>(0, ((length + stride - 1) / stride - 1) * stride + window - length);
  const std::int64_t less = total / 2;
  return automatic == "SAME_UPPER" ? Ints{less, total - less} : Ints{total - less, less};
}

void conv(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  const VarId w = to.in(node, 1);
  for (const VarId var : {x, w})
    if (to.type(var).rank() >= 0 && to.type(var).rank() != 3)
      throw UnsupportedError("expected a convolution along one axis (rank 3), found '" + to.program().var(var).name + "' of " +
                             to.type(var).to_string());
  const std::int64_t kernel = to.type(w).rank() == 3 ? (*to.type(w).shape)[2] : DDim::unknown;
  const std::int64_t declared = of_one_axis(node, "kernel_shape", kernel);
  if (kernel >= 0 && declared != kernel)
    throw ProgramError("attribute kernel_shape: expected " + std::to_string(kernel) + " as in the weights, found " +
                       std::to_string(declared));
  const std::int64_t stride = of_one_axis(node, "strides", 1);
  const std::int64_t dilation = of_one_axis(node, "dilations", 1);
  to.give(node, op, {x, w, to.in_or_none(node, 2)},
          {{"group", node.integer("group", 1)},
           {"stride", stride},
           {"dilation", dilation},
           {"pads", conv_pads(to, node, x, declared, stride, dilation)}});
}

/// (x − mean) · (scale / √(variance + ε)) + bias, with one number per channel (axis 1).
void batch_norm(Importer& to, const Node& node, const char*) {
  if (node.integer("training_mode", 0) != 0) throw UnsupportedError("attribute training_mode: expected 0, found 1");
  if (node.integer("spatial", 1) != 1) throw UnsupportedError("attribute spatial: expected 1, found 0");
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

constexpr Rule rules[] = {
    {"MatMul", matmul, "matmul"},
    {"Gemm", gemm, "gemm"},
    {"Conv", conv, "conv1d"},
    {"BatchNormalization", batch_norm},
};

}  // namespace

std::span<const Rule> linear_rules() { return rules; }

}  // namespace millrace::importing
