// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/settings.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <millrace/runtime/models/import/with_onnx/node.h>

namespace millrace::importing {
namespace {

/// Inputs that hold no weights: bit i stands for input i.
struct SettingInputs {
  std::string_view op;  ///< as in `Rule::onnx`
  unsigned inputs;
};
constexpr unsigned bit(int input) { return 1u << input; }
constexpr SettingInputs setting_inputs[] = {
    {"BatchNormalization", bit(3) | bit(4)},  // mean, variance
    {"Clip", bit(1) | bit(2)},                // min, max
    {"Pad", bit(2)},                          // the value
    {"Resize", bit(1) | bit(2)},              // roi, scales
    {"Upsample", bit(1)},                     // scales
    {"Dropout", bit(1)},                      // ratio
    {"OneHot", bit(2)},                       // off and on
    {"Range", bit(0) | bit(1) | bit(2)},      // start, limit, step
    {"STFT", bit(2)},                         // window
    {"MelWeightMatrix", bit(3) | bit(4)},     // the least and the greatest frequency
    {"NegativeLogLikelihoodLoss", bit(2)},    // weights of the classes
    {"SoftmaxCrossEntropyLoss", bit(2)},      // weights of the classes
    {"RotaryEmbedding", bit(1) | bit(2)},     // cosines, sines
    {"QuantizeLinear", bit(1)},               // scale
    {"DequantizeLinear", bit(1)},             // scale
    {"com.microsoft.QuantizeLinear", bit(1)},
    {"com.microsoft.DequantizeLinear", bit(1)},
};

bool is_setting(const Node& node, std::size_t input) {
  const std::string op = node.qualified_op();
  const auto found = std::find_if(std::begin(setting_inputs), std::end(setting_inputs), [&](const auto& each) { return each.op == op; });
  return found != std::end(setting_inputs) && input < 32 && (found->inputs & bit(static_cast<int>(input))) != 0;
}

struct Reads {
  std::set<std::string> settings;
  std::set<std::string> others;
  std::vector<std::pair<std::string, std::string>> copies;  ///< input, output
};

void collect(const onnx::GraphProto& graph, Reads& reads) {
  for (const onnx::NodeProto& proto : graph.node()) {
    const Node node(proto);
    // Exporters write one tensor for equal values, and copies of it.
    const bool copies = (node.qualified_op() == "Identity" || node.qualified_op() == "Cast") && node.has(0) && node.wants(0);
    if (copies) reads.copies.emplace_back(node.input(0), node.output(0));
    for (std::size_t i = 0; !copies && i < node.inputs(); ++i)
      if (node.has(i)) (is_setting(node, i) ? reads.settings : reads.others).insert(node.input(i));
    for (const onnx::AttributeProto& attribute : proto.attribute())
      if (attribute.has_g()) collect(attribute.g(), reads);
  }
  for (const onnx::ValueInfoProto& output : graph.output()) reads.others.insert(output.name());
}

}  // namespace

std::set<std::string> settings_of(const onnx::GraphProto& graph) {
  Reads reads;
  collect(graph, reads);
  // A copy of a copy stands behind it.
  for (auto copy = reads.copies.rbegin(); copy != reads.copies.rend(); ++copy)
    for (std::set<std::string>* names : {&reads.settings, &reads.others})
      if (names->contains(copy->second)) names->insert(copy->first);
  for (const std::string& name : reads.others) reads.settings.erase(name);
  return std::move(reads.settings);
}

}  // namespace millrace::importing
