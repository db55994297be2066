// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/cuts.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace millrace::importing {
namespace {

enum class Effect { keeps, cuts, ends };

std::string worded(const onnx::NodeProto& node, std::string_view name) {
  for (const onnx::AttributeProto& attribute : node.attribute())
    if (attribute.name() == name) return attribute.s();
  return {};
}

/// Whether a transposed convolution leaves out places that its input reaches.
bool is_cropped(const onnx::NodeProto& node) {
  return std::any_of(node.attribute().begin(), node.attribute().end(), [](const onnx::AttributeProto& attribute) {
    if (attribute.name() == "pads") return std::any_of(attribute.ints().begin(), attribute.ints().end(), [](auto pad) { return pad != 0; });
    return attribute.name() == "output_shape" || (attribute.name() == "auto_pad" && attribute.s() != "NOTSET");
  });
}

Effect effect_of(const onnx::NodeProto& node) {
  // Windows without padding behind see the last places, too: what looks ahead of the last row stays in their results.
  constexpr std::array<std::string_view, 46> keeping{"Relu",
                                                     "LeakyRelu",
                                                     "PRelu",
                                                     "Elu",
                                                     "Selu",
                                                     "Celu",
                                                     "Gelu",
                                                     "Sigmoid",
                                                     "Tanh",
                                                     "HardSigmoid",
                                                     "HardSwish",
                                                     "Softplus",
                                                     "Mish",
                                                     "Clip",
                                                     "Erf",
                                                     "Add",
                                                     "Sub",
                                                     "Mul",
                                                     "Div",
                                                     "Pow",
                                                     "Sqrt",
                                                     "Exp",
                                                     "Log",
                                                     "Abs",
                                                     "Neg",
                                                     "Cast",
                                                     "MatMul",
                                                     "Gemm",
                                                     "Dropout",
                                                     "Identity",
                                                     "Softmax",
                                                     "LogSoftmax",
                                                     "Concat",
                                                     "Transpose",
                                                     "Reshape",
                                                     "Flatten",
                                                     "Squeeze",
                                                     "Unsqueeze",
                                                     "Conv",
                                                     "MaxPool",
                                                     "AveragePool",
                                                     "Min",
                                                     "Max",
                                                     "Sum",
                                                     "QuantizeLinear",
                                                     "DequantizeLinear"};
  constexpr std::array<std::string_view, 13> folding{"BatchNormalization",
                                                     "LayerNormalization",
                                                     "InstanceNormalization",
                                                     "GroupNormalization",
                                                     "GlobalAveragePool",
                                                     "GlobalMaxPool",
                                                     "ReduceMean",
                                                     "ReduceMax",
                                                     "ReduceSum",
                                                     "ReduceMin",
                                                     "ReduceL2",
                                                     "ArgMax",
                                                     "LRN"};
  if (!node.domain().empty() && node.domain() != "ai.onnx") return Effect::cuts;
  const std::string& op = node.op_type();
  if (op == "Shape" || op == "Size") return Effect::ends;
  // A direction that begins at the end has no live form.
  if (op == "LSTM" || op == "GRU" || op == "RNN")
    return worded(node, "direction").empty() || worded(node, "direction") == "forward" ? Effect::keeps : Effect::ends;
  // A resized axis has no live form: the places of its elements follow from its length.
  if (op == "Resize" || op == "Upsample") return Effect::keeps;
  if (op == "ConvTranspose") return is_cropped(node) ? Effect::cuts : Effect::keeps;
  const auto among = [&](const auto& all) { return std::find(all.begin(), all.end(), op) != all.end(); };
  return among(keeping) || among(folding) ? Effect::keeps : Effect::cuts;
}

}  // namespace

Cuts::Cuts(const onnx::GraphProto& graph) {
  bool holds_graphs = false;
  for (int i = graph.node_size() - 1; i >= 0; --i) {
    const onnx::NodeProto& node = graph.node(i);
    const Effect effect = effect_of(node);
    const bool cut = effect == Effect::cuts ||
                     (effect == Effect::keeps &&
                      std::any_of(node.output().begin(), node.output().end(), [&](const std::string& output) { return behind(output); }));
    if (!cut) continue;
    for (const std::string& input : node.input())
      if (!input.empty()) cut_.insert(input);
    // A graph within may read whatever stands in front of it.
    if (holds_graphs) continue;
    holds_graphs = std::any_of(node.attribute().begin(), node.attribute().end(), [](const auto& attribute) { return attribute.has_g(); });
    for (int before = 0; holds_graphs && before < i; ++before)
      cut_.insert(graph.node(before).output().begin(), graph.node(before).output().end());
  }
}

}  // namespace millrace::importing
