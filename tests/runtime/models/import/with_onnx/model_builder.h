// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <millrace_onnx.pb.h>

#include <millrace/runtime/models/export/with_onnx/exporter.h>
#include <millrace/tensor/tensor.h>

namespace millrace::testing {

/// A node that is being built.
class NodeBuilder {
 public:
  explicit NodeBuilder(onnx::NodeProto& proto) : proto_(proto) {}

  NodeBuilder& name(const std::string& name) { return proto_.set_name(name), *this; }
  NodeBuilder& domain(const std::string& domain) { return proto_.set_domain(domain), *this; }
  NodeBuilder& set(const std::string& name, int value) {
    add(name, onnx::AttributeProto::INT).set_i(value);
    return *this;
  }
  NodeBuilder& set(const std::string& name, float value) {
    add(name, onnx::AttributeProto::FLOAT).set_f(value);
    return *this;
  }
  NodeBuilder& set(const std::string& name, const char* value) {
    add(name, onnx::AttributeProto::STRING).set_s(value);
    return *this;
  }
  NodeBuilder& set(const std::string& name, const std::vector<std::int64_t>& values) {
    auto& attribute = add(name, onnx::AttributeProto::INTS);
    for (const std::int64_t value : values) attribute.add_ints(value);
    return *this;
  }
  NodeBuilder& set(const std::string& name, const std::vector<std::string>& values) {
    auto& attribute = add(name, onnx::AttributeProto::STRINGS);
    for (const std::string& value : values) attribute.add_strings(value);
    return *this;
  }
  NodeBuilder& set(const std::string& name, const onnx::GraphProto& graph) {
    *add(name, onnx::AttributeProto::GRAPH).mutable_g() = graph;
    return *this;
  }
  NodeBuilder& set(const std::string& name, const onnx::TensorProto& tensor) {
    *add(name, onnx::AttributeProto::TENSOR).mutable_t() = tensor;
    return *this;
  }

 private:
  onnx::AttributeProto& add(const std::string& name, onnx::AttributeProto::AttributeType type) {
    onnx::AttributeProto& attribute = *proto_.add_attribute();
    attribute.set_name(name);
    attribute.set_type(type);
    return attribute;
  }
  onnx::NodeProto& proto_;
};

/// A graph that is being built. Extents below 0 get a name.
class GraphBuilder {
 public:
  onnx::GraphProto graph;

  GraphBuilder& input(const std::string& name, const std::vector<std::int64_t>& extents, int type = onnx::TensorProto::FLOAT) {
    onnx::ValueInfoProto& port = *graph.add_input();
    port.set_name(name);
    auto& tensor = *port.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(type);
    tensor.mutable_shape();
    for (const std::int64_t extent : extents) {
      auto& dim = *tensor.mutable_shape()->add_dim();
      if (extent < 0)
        dim.set_dim_param("n");
      else
        dim.set_dim_value(extent);
    }
    return *this;
  }
  GraphBuilder& output(const std::string& name) {
    graph.add_output()->set_name(name);
    return *this;
  }
  GraphBuilder& initializer(const std::string& name, const Tensor& value) {
    *graph.add_initializer() = exporting::tensor_proto(value, name);
    return *this;
  }
  NodeBuilder node(const std::string& op, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
    onnx::NodeProto& proto = *graph.add_node();
    proto.set_op_type(op);
    for (const std::string& input : inputs) proto.add_input(input);
    for (const std::string& output : outputs) proto.add_output(output);
    return NodeBuilder(proto);
  }

  /// The file of a model with this graph.
  std::string bytes(int opset = 17) const {
    onnx::ModelProto model;
    model.set_ir_version(8);
    model.add_opset_import()->set_version(opset);
    *model.mutable_graph() = graph;
    return model.SerializeAsString();
  }
};

}  // namespace millrace::testing
