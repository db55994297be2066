// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/cuts.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace millrace::importing {
namespace {

enum class Effect { keeps, cuts, ends };

/// Ops of ONNX that make each element of one element of each operand.
constexpr std::array<std::string_view, 29> element_by_element{"Relu",
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
                                                              "Dropout",
                                                              "Identity",
                                                              "Min",
                                                              "Max",
                                                              "Sum",
                                                              "QuantizeLinear",
                                                              "DequantizeLinear"};

template <std::size_t N>
bool is_among(const std::array<std::string_view, N>& all, const std::string& op) {
  return std::find(all.begin(), all.end(), op) != all.end();
}

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

/// The axes of a graph's values, as far as its nodes and constants tell them.
class Axes {
 public:
  explicit Axes(const onnx::GraphProto& graph) {
    for (const onnx::TensorProto& known : graph.initializer()) constants_[known.name()] = &known;
    for (const onnx::NodeProto& node : graph.node()) {
      if (node.op_type() == "Constant" && node.output_size() == 1)
        for (const onnx::AttributeProto& attribute : node.attribute())
          if (attribute.name() == "value") constants_[node.output(0)] = &attribute.t();
      if (gives_channels(node)) channels_.insert(node.output().begin(), node.output().end());
    }
  }

  /// Whether a node takes channels alone from the result of a convolution: axis 1, which no sequence goes along.
  bool takes_channels(const onnx::NodeProto& node) const {
    if (node.input_size() == 0 || !channels_.contains(node.input(0))) return false;
    if (node.op_type() == "Split")
      return std::any_of(node.attribute().begin(), node.attribute().end(),
                         [](const auto& attribute) { return attribute.name() == "axis" && attribute.i() == 1; });
    if (node.op_type() != "Slice") return false;
    for (const onnx::AttributeProto& attribute : node.attribute())
      if (attribute.name() == "axes") return attribute.ints_size() == 1 && attribute.ints(0) == 1;
    return node.input_size() > 3 && is_one(node.input(3));
  }

 private:
  /// Whether axis 1 of the outputs is the channels of a convolution.
  bool gives_channels(const onnx::NodeProto& node) const {
    constexpr std::array<std::string_view, 9> first{
        "BatchNormalization", "InstanceNormalization", "MaxPool", "AveragePool", "Resize", "Upsample", "Concat", "Slice", "Split"};
    const std::string& op = node.op_type();
    if ((!node.domain().empty() && node.domain() != "ai.onnx") || node.input_size() == 0) return false;
    if (op == "Conv" || op == "ConvTranspose") return true;
    if (is_among(first, op)) return channels_.contains(node.input(0));
    // A constant of more axes would move those of the other operand.
    return is_among(element_by_element, op) &&
           std::any_of(node.input().begin(), node.input().end(), [&](const auto& input) { return channels_.contains(input); }) &&
           std::all_of(node.input().begin(), node.input().end(), [&](const std::string& input) {
             const auto known = constants_.find(input);
             return input.empty() || channels_.contains(input) || (known != constants_.end() && known->second->dims_size() <= 3);
           });
  }
  bool is_one(const std::string& value) const {
    const auto known = constants_.find(value);
    if (known == constants_.end() || known->second->data_location() == onnx::TensorProto::EXTERNAL) return false;
    const onnx::TensorProto& list = *known->second;
    if (std::any_of(list.dims().begin(), list.dims().end(), [](auto extent) { return extent != 1; })) return false;
    const std::string& raw = list.raw_data();
    if (list.data_type() == onnx::TensorProto::INT64)
      return raw == std::string("\1\0\0\0\0\0\0\0", 8) || (list.int64_data_size() == 1 && list.int64_data(0) == 1);
    return list.data_type() == onnx::TensorProto::INT32 &&
           (raw == std::string("\1\0\0\0", 4) || (list.int32_data_size() == 1 && list.int32_data(0) == 1));
  }

  std::map<std::string, const onnx::TensorProto*> constants_;
  std::set<std::string> channels_;
};

Effect effect_of(const onnx::NodeProto& node, const Axes& axes) {
  // Windows without padding behind see the last places, too: what looks ahead of the last row stays in their results.
  constexpr std::array<std::string_view, 17> keeping{"Log",     "Abs",        "Neg",    "Cast",      "MatMul",     "Gemm",
                                                     "Softmax", "LogSoftmax", "Concat", "Transpose", "Reshape",    "Flatten",
                                                     "Squeeze", "Unsqueeze",  "Conv",   "MaxPool",   "AveragePool"};
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
  if (axes.takes_channels(node)) return Effect::keeps;
  return is_among(element_by_element, op) || is_among(keeping, op) || is_among(folding, op) ? Effect::keeps : Effect::cuts;
}

}  // namespace

Cuts::Cuts(const onnx::GraphProto& graph) {
  const Axes axes(graph);
  bool holds_graphs = false;
  for (int i = graph.node_size() - 1; i >= 0; --i) {
    const onnx::NodeProto& node = graph.node(i);
    const Effect effect = effect_of(node, axes);
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
