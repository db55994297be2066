// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/functions.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/tensor/error.h>

namespace millrace::importing {
namespace {

using internal::printable;
using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

/// The most nodes that the calls of a file may become.
constexpr std::int64_t most_nodes = 1 << 17;
constexpr std::size_t most_bytes = std::size_t{128} << 20;
constexpr int deepest_call = 64;

std::string plain_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

template <class Sets>
std::int64_t opset_of(const Sets& sets) {
  for (const onnx::OperatorSetIdProto& set : sets)
    if (plain_domain(set.domain()).empty()) return set.version();
  return 0;
}

const onnx::AttributeProto* attribute_of(const google::protobuf::RepeatedPtrField<onnx::AttributeProto>& all, const std::string& name) {
  for (const onnx::AttributeProto& attribute : all)
    if (attribute.name() == name) return &attribute;
  return nullptr;
}

/// One call of one function. Every name in the body of a function is its own, in the sub-graphs too.
class Call {
 public:
  Call(const onnx::NodeProto& call, const onnx::FunctionProto& function, std::int64_t number)
      : call_(call),
        function_(function),
        prefix_((call.name().empty() ? function.name() : call.name()) + "#" + std::to_string(number) + "/") {
    for (int i = 0; i < function.input_size(); ++i) names_[function.input(i)] = i < call.input_size() ? call.input(i) : "";
  }

  Nodes nodes() {
    Nodes made;
    std::vector<std::pair<std::string, std::string>> handed_on;
    for (int i = 0; i < call_.output_size(); ++i) {
      const std::string& inside = function_.output(i);
      if (call_.output(i).empty()) continue;
      if (!names_.emplace(inside, call_.output(i)).second) handed_on.emplace_back(names_.at(inside), call_.output(i));
    }
    for (const onnx::NodeProto& node : function_.node()) {
      onnx::NodeProto& copied = *made.Add();
      copied = node;
      rename(copied);
    }
    for (const auto& [from, to] : handed_on) {
      onnx::NodeProto& node = *made.Add();
      node.set_op_type("Identity");
      node.add_input(from);
      node.add_output(to);
    }
    return made;
  }

 private:
  std::string renamed(const std::string& name) const {
    const auto known = names_.find(name);
    return name.empty() ? name : known != names_.end() ? known->second : prefix_ + name;
  }

  void rename(onnx::NodeProto& node) const {
    if (!node.name().empty()) node.set_name(prefix_ + node.name());
    for (std::string& input : *node.mutable_input()) input = renamed(input);
    for (std::string& output : *node.mutable_output()) output = renamed(output);
    google::protobuf::RepeatedPtrField<onnx::AttributeProto> kept;
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      if (!attribute.ref_attr_name().empty() && !refer(attribute)) continue;
      if (attribute.has_g()) rename(*attribute.mutable_g());
      kept.Add()->Swap(&attribute);
    }
    node.mutable_attribute()->Swap(&kept);
  }

  void rename(onnx::GraphProto& graph) const {
    for (onnx::ValueInfoProto& input : *graph.mutable_input()) input.set_name(renamed(input.name()));
    for (onnx::ValueInfoProto& output : *graph.mutable_output()) output.set_name(renamed(output.name()));
    for (onnx::TensorProto& initializer : *graph.mutable_initializer()) initializer.set_name(renamed(initializer.name()));
    for (onnx::NodeProto& node : *graph.mutable_node()) rename(node);
  }

  /// The attribute as the call gives it, or by default. False when nothing does: then the node has none.
  bool refer(onnx::AttributeProto& attribute) const {
    const onnx::AttributeProto* given = attribute_of(call_.attribute(), attribute.ref_attr_name());
    if (given == nullptr) given = attribute_of(function_.attribute_proto(), attribute.ref_attr_name());
    if (given == nullptr) return false;
    const std::string name = attribute.name();
    attribute = *given;
    attribute.set_name(name);
    return true;
  }

  const onnx::NodeProto& call_;
  const onnx::FunctionProto& function_;
  std::string prefix_;
  std::map<std::string, std::string> names_;
};

class Expander {
 public:
  Expander(const onnx::ModelProto& model, const std::string& source) : source_(source), opset_(opset_of(model.opset_import())) {
    for (const onnx::FunctionProto& function : model.functions())
      if (!functions_.emplace(Key(plain_domain(function.domain()), function.name(), function.overload()), &function).second)
        throw ParseError(source + ": function " + printable(function.name()) +
                         ": expected each function of a domain and an overload once, " + "found it twice with the overload " +
                         printable(function.overload()));
  }

  void expand(Nodes& nodes, int depth) {
    Nodes expanded;
    for (onnx::NodeProto& node : nodes) {
      for (onnx::AttributeProto& attribute : *node.mutable_attribute())
        if (attribute.has_g()) expand(*attribute.mutable_g()->mutable_node(), depth);
      const auto found = functions_.find({plain_domain(node.domain()), node.op_type(), node.overload()});
      if (found == functions_.end()) {
        expanded.Add()->Swap(&node);
        continue;
      }
      check(node, *found->second, depth);
      Nodes body = Call(node, *found->second, ++calls_).nodes();
      expand(body, depth + 1);
      for (onnx::NodeProto& inner : body) expanded.Add()->Swap(&inner);
    }
    nodes.Swap(&expanded);
  }

 private:
  void check(const onnx::NodeProto& call, const onnx::FunctionProto& function, int depth) {
    const std::string where = source_ + ": function " + printable(function.name()) + ": ";
    if (call.input_size() > function.input_size() || call.output_size() > function.output_size())
      throw ParseError(where + "expected a call with at most " + std::to_string(function.input_size()) + " inputs and " +
                       std::to_string(function.output_size()) + " outputs, found " + std::to_string(call.input_size()) + " and " +
                       std::to_string(call.output_size()));
    const std::int64_t wanted = opset_of(function.opset_import());
    if (wanted != 0 && wanted != opset_)
      throw UnsupportedError(where + "expected the opset of the model, " + std::to_string(opset_) + ", found " + std::to_string(wanted));
    if (depth >= deepest_call)
      throw UnsupportedError(where + "expected calls at most " + std::to_string(deepest_call) + " deep, found more: does it call itself?");
    nodes_ += function.node_size();
    bytes_ += function.ByteSizeLong() + call.ByteSizeLong();
    if (nodes_ > most_nodes || bytes_ > most_bytes)
      throw UnsupportedError(where + "expected calls that become at most " + std::to_string(most_nodes) + " nodes and " +
                             std::to_string(most_bytes) + " bytes, found more");
  }

  const std::string& source_;
  std::int64_t opset_;
  using Key = std::tuple<std::string, std::string, std::string>;  // domain, name, overload
  std::map<Key, const onnx::FunctionProto*> functions_;
  std::int64_t calls_ = 0;
  std::int64_t nodes_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace

void expand_functions(onnx::ModelProto& model, const std::string& source) {
  if (model.functions_size() == 0 || !model.has_graph()) return;
  Expander(model, source).expand(*model.mutable_graph()->mutable_node(), 0);
}

}  // namespace millrace::importing
