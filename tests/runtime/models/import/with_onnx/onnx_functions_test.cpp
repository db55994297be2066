// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <runtime/models/import/with_onnx/model_builder.h>
#include <support/drive.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using testing::GraphBuilder;
using testing::NodeBuilder;
using Floats = std::vector<float>;

Tensor floats(const Floats& values, const DDim& dims) { return Tensor::from(values, dims); }

/// A function of domain "my", built as the file holds it.
struct FunctionBuilder {
  FunctionBuilder(const std::string& name, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
    proto.set_name(name);
    proto.set_domain("my");
    for (const std::string& input : inputs) proto.add_input(input);
    for (const std::string& output : outputs) proto.add_output(output);
    proto.add_opset_import()->set_version(17);
  }
  NodeBuilder node(const std::string& op, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
    GraphBuilder one;
    one.node(op, inputs, outputs);
    *proto.add_node() = one.graph.node(0);
    return NodeBuilder(*proto.mutable_node(proto.node_size() - 1));
  }
  /// The last node takes its attribute `name` from the call's attribute `from`.
  void refer(const std::string& name, const std::string& from) {
    auto& attribute = *proto.mutable_node(proto.node_size() - 1)->add_attribute();
    attribute.set_name(name);
    attribute.set_ref_attr_name(from);
    attribute.set_type(onnx::AttributeProto::FLOAT);
  }
  onnx::FunctionProto proto;
};

std::string bytes(const GraphBuilder& graph, const std::vector<onnx::FunctionProto>& functions) {
  onnx::ModelProto model;
  REQUIRE(model.ParseFromString(graph.bytes()));
  auto& own = *model.add_opset_import();
  own.set_domain("my");
  own.set_version(1);
  for (const onnx::FunctionProto& function : functions) *model.add_functions() = function;
  return model.SerializeAsString();
}

template <class E>
std::string refusal(const std::string& model) {
  try {
    parse_onnx(model, "m.onnx");
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

bool says(const std::string& text, const std::vector<std::string>& parts) {
  INFO(text);
  bool all = true;
  for (const std::string& part : parts) all = all && text.find(part) != std::string::npos;
  CHECK(all);
  return all;
}

RunResult run_it(const std::string& model, Feeds feeds) { return testing::run_fifo(run(parse_onnx(model, "m.onnx"), std::move(feeds))); }

/// leak(x, y?) = LeakyRelu(x; slope), and x handed on; twice(x) = leak(leak(x)) + a value of its own named as the caller's.
std::vector<onnx::FunctionProto> leaks() {
  FunctionBuilder leak("leak", {"x", "unused"}, {"y", "x"});
  leak.node("LeakyRelu", {"x"}, {"y"});
  leak.refer("alpha", "slope");
  onnx::AttributeProto& slope = *leak.proto.add_attribute_proto();
  slope.set_name("slope");
  slope.set_type(onnx::AttributeProto::FLOAT);
  slope.set_f(0.5f);
  FunctionBuilder twice("twice", {"a"}, {"b"});
  twice.node("leak", {"a"}, {"x", ""}).domain("my").set("slope", 0.25f);
  twice.node("leak", {"x"}, {"y"}).domain("my");
  twice.node("Add", {"y", "y"}, {"b"});
  return {leak.proto, twice.proto};
}

}  // namespace

TEST_CASE("Functions of a model stand where they are called, with names of their own, attributes of the call or by default") {
  GraphBuilder graph;
  graph.input("x", {-1}).output("y").output("same").output("again");
  graph.node("twice", {"x"}, {"y"}).domain("my").name("first");
  graph.node("leak", {"y"}, {"again", "same"}).domain("my");
  const RunResult result = run_it(bytes(graph, leaks()), {{"x", floats({-8, 4}, {2})}});
  CHECK(result["y"].tensor().to_vector<float>() == Floats{-2, 8});
  CHECK(result["same"].tensor().to_vector<float>() == Floats{-2, 8});
  CHECK(result["again"].tensor().to_vector<float>() == Floats{-1, 8});
}

TEST_CASE("Functions of one name are told apart by their overloads, and one that is there twice is refused") {
  const auto function = [](const char* op, const std::string& overload) {
    FunctionBuilder made("f", {"x"}, {"y"});
    made.node(op, {"x"}, {"y"});
    made.proto.set_overload(overload);
    return made.proto;
  };
  GraphBuilder graph;
  graph.input("x", {-1}).output("a").output("b");
  graph.node("f", {"x"}, {"a"}).domain("my");
  graph.node("f", {"x"}, {"b"}).domain("my");
  graph.graph.mutable_node(0)->set_overload("one");
  graph.graph.mutable_node(1)->set_overload("two");
  const RunResult result = run_it(bytes(graph, {function("Neg", "one"), function("Abs", "two")}), {{"x", floats({-8, 4}, {2})}});
  CHECK(result["a"].tensor().to_vector<float>() == Floats{8, -4});
  CHECK(result["b"].tensor().to_vector<float>() == Floats{8, 4});
  says(refusal<ParseError>(bytes(graph, {function("Neg", "one"), function("Abs", "one")})), {"m.onnx", "'f'", "once", "'one'"});
  says(refusal<UnsupportedError>(bytes(graph, {function("Neg", "one"), function("Abs", "")})), {"m.onnx", "my.f"});
}

TEST_CASE("A function with a loop inside is another loop at each call") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("s", {-1});
  body.output("on").output("longer").output("longer");
  body.node("Identity", {"go"}, {"on"});
  body.node("Add", {"s", "x"}, {"longer"});
  FunctionBuilder steps("steps", {"h", "x", "n"}, {"last", "all"});
  steps.node("Loop", {"n", "", "h"}, {"last", "all"}).set("body", body.graph);
  GraphBuilder graph;
  graph.input("h", {-1}).input("x", {-1}).input("n", {}, onnx::TensorProto::INT64).output("last").output("all");
  graph.node("steps", {"h", "x", "n"}, {"once"}).domain("my");
  graph.node("steps", {"once", "x", "n"}, {"last", "all"}).domain("my");
  const Feeds feeds{{"h", floats({1}, {1})}, {"x", floats({2}, {1})}, {"n", Tensor::scalar(std::int64_t{2})}};
  const RunResult result = run_it(bytes(graph, {steps.proto}), feeds);
  CHECK(result["last"].tensor().to_vector<float>() == Floats{9});
  CHECK(result["all"].tensor().to_vector<float>() == Floats{7, 9});
}

TEST_CASE("A function that calls itself, grows without bound, is of another opset or is called with too much is refused by name") {
  GraphBuilder graph;
  graph.input("x", {-1}).output("y");
  graph.node("f0", {"x"}, {"y"}).domain("my");
  FunctionBuilder endless("f0", {"x"}, {"y"});
  endless.node("f0", {"x"}, {"y"}).domain("my");
  says(refusal<UnsupportedError>(bytes(graph, {endless.proto})), {"m.onnx", "f0", "calls at most 64 deep"});
  // Each calls the next ten times.
  std::vector<onnx::FunctionProto> laughs;
  for (int i = 0; i < 20; ++i) {
    FunctionBuilder each("f" + std::to_string(i), {"x"}, {"y"});
    for (int k = 0; k < 10; ++k)
      each.node("f" + std::to_string(i + 1), {k == 0 ? "x" : "t" + std::to_string(k)}, {k == 9 ? "y" : "t" + std::to_string(k + 1)})
          .domain("my");
    laughs.push_back(each.proto);
  }
  says(refusal<UnsupportedError>(bytes(graph, laughs)), {"m.onnx", "at most 131072 nodes", "found more"});
  FunctionBuilder other("f0", {"x"}, {"y"});
  other.node("Relu", {"x"}, {"y"});
  other.proto.mutable_opset_import(0)->set_version(11);
  says(refusal<UnsupportedError>(bytes(graph, {other.proto})), {"f0", "expected the opset of the model, 17, found 11"});
  FunctionBuilder narrow("f0", {}, {"y"});
  says(refusal<ParseError>(bytes(graph, {narrow.proto})), {"f0", "at most 0 inputs and 1 outputs, found 1 and 1"});
}

TEST_CASE("Where the batch is known only in the run: no steps are as many sequences, and states of another number are refused") {
  for (const std::string op : {"RNN", "GRU", "LSTM"}) {
    INFO(op);
    const std::int64_t gates = op == "RNN" ? 1 : op == "GRU" ? 3 : 4;
    const auto weight = [](const DDim& dims) { return floats(Floats(static_cast<std::size_t>(dims.elements()), 0.5f), dims); };
    GraphBuilder graph;
    graph.input("x", {-1, -1, 3}).input("h", {1, -1, 2}).output("y").output("yh");
    graph.initializer("W", weight({1, gates * 2, 3})).initializer("R", weight({1, gates * 2, 2}));
    graph.node(op, {"x", "W", "R", "", "", "h"}, {"y", "yh"}).set("hidden_size", 2);
    const RunResult none = run_it(graph.bytes(), {{"x", weight({0, 4, 3})}, {"h", weight({1, 4, 2})}});
    CHECK(none["y"].dims() == DDim{0, 1, 4, 2});
    CHECK(none["yh"].dims() == DDim{1, 4, 2});
    const RunResult empty = run_it(graph.bytes(), {{"x", weight({5, 0, 3})}, {"h", weight({1, 0, 2})}});
    CHECK(empty["y"].dims() == DDim{5, 1, 0, 2});
    CHECK_THROWS_AS(run_it(graph.bytes(), {{"x", weight({2, 1, 3})}, {"h", weight({1, 3, 2})}}), Error);
    CHECK_THROWS_AS(run_it(graph.bytes(), {{"x", weight({2, 3, 3})}, {"h", weight({1, 1, 2})}}), Error);
  }
}

TEST_CASE("ConstantFill, by which PyTorch sized states below opset 9, fills a shape that is given or that of its input") {
  GraphBuilder graph;
  graph.input("x", {-1, 3}).output("given").output("like");
  graph.node("Shape", {"x"}, {"shape"});
  graph.node("ConstantFill", {"shape"}, {"given"}).set("input_as_shape", 1).set("value", 2.0f).set("dtype", 1);
  graph.node("ConstantFill", {"x"}, {"like"}).set("dtype", 7).set("value", 3.0f);
  const RunResult result = run_it(graph.bytes(8), {{"x", floats({1, 2, 3, 4, 5, 6}, {2, 3})}});
  CHECK(result["given"].tensor().to_vector<float>() == Floats(6, 2.0f));
  CHECK(result["like"].tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>(6, 3));
  CHECK(result["like"].dims() == DDim{2, 3});
}

}  // namespace millrace
