// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include <millrace/runtime/executor/run_program.h>
#include <support/bytes.h>
#include <support/drive.h>
#include <support/random.h>

#include "imported.h"

namespace millrace {
namespace {

using testing::GraphBuilder, testing::parse;

template <class E>
std::string refused(const GraphBuilder& graph, int opset = 17) {
  try {
    parse_onnx(graph.bytes(opset), "m.onnx");
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string type_of(const Program& program, std::size_t output) { return program.var(program.outputs().at(output).var).type.to_string(); }

bool holds(const Program& program, const std::string& op) {
  return std::any_of(program.blocks().begin(), program.blocks().end(), [&](const Block& block) {
    return std::any_of(block.ops.begin(), block.ops.end(), [&](const Op& each) { return each.type == op; });
  });
}

onnx::TypeProto& list_input(GraphBuilder& graph, const std::string& name) {
  onnx::ValueInfoProto& port = *graph.graph.add_input();
  port.set_name(name);
  onnx::TypeProto& element = *port.mutable_type()->mutable_sequence_type()->mutable_elem_type();
  element.mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  element.mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_value(3);
  return *port.mutable_type();
}

/// `for i in range(n): out.append(x * i)`, as exporters write it; `op` is what an iteration does with its list.
GraphBuilder appending(const std::string& op = "SequenceInsert") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).output("more").output("longer");
  body.graph.add_input()->set_name("list");
  body.node("Identity", {"go"}, {"more"});
  body.node("Tanh", {"x"}, {"each"});
  body.node(op, {"list", "each"}, {"longer"});
  GraphBuilder graph;
  graph.input("x", {2, 3}).input("n", {}, onnx::TensorProto::INT64).output("all").output("list");
  graph.node("SequenceEmpty", {}, {"none"});
  graph.node("Loop", {"n", "", "none"}, {"list"}).set("body", body.graph);
  graph.node("ConcatFromSequence", {"list"}, {"all"}).set("axis", 0).set("new_axis", 1);
  return graph;
}

TEST_CASE("A list that a loop builds has elements of the type that is put into it") {
  const Program program = parse(appending());
  CHECK(type_of(program, 0) == "f32[?, 2, 3]");
  CHECK(type_of(program, 1) == "list<f32[2, 3]>");
}

TEST_CASE("SplitToSequence without keepdims takes the axis away where its length is a scalar of 1, as x.unbind() of PyTorch is written") {
  const auto element = [](const Tensor& lengths, int keepdims) {
    GraphBuilder graph;
    graph.input("x", {4, 2, 3}).initializer("lengths", lengths).output("y");
    graph.node("SplitToSequence", {"x", "lengths"}, {"y"}).set("axis", 0).set("keepdims", keepdims);
    return type_of(parse(graph), 0);
  };
  const Tensor one = Tensor::scalar<std::int64_t>(1);
  CHECK(element(one, 0) == "list<f32[2, 3]>");
  CHECK(element(one, 1) == "list<f32[1, 2, 3]>");
  CHECK(element(Tensor::from<std::int64_t>({1, 1, 1, 1}), 0) == "list<f32[1, 2, 3]>");
  CHECK(element(Tensor::scalar<std::int64_t>(2), 0) == "list<f32[2, 2, 3]>");
  GraphBuilder graph;
  graph.input("x", {4, 2, 3}).input("length", {}, onnx::TensorProto::INT64).output("y");
  graph.node("SplitToSequence", {"x", "length"}, {"y"}).set("axis", 0).set("keepdims", 0);
  CHECK(type_of(parse(graph), 0) == "list<f32[*]>");
}

TEST_CASE("A list whose elements the file says one by one is no list: exporters write chunk, unbind and hstack of scripts so") {
  const Tensor lengths = Tensor::from<std::int64_t>({1, 3}), two = Tensor::scalar<std::int64_t>(2), one = Tensor::scalar<std::int64_t>(1);
  struct Case {
    Tensor lengths;
    std::int64_t position;
    std::vector<float> picked;
  };
  const std::vector<Case> cases{
      {lengths, -1, {1, 2, 3}}, {lengths, 0, {0}}, {two, 1, {2, 3}}, {one, 3, {3}}, {Tensor::scalar<std::int64_t>(3), 1, {3}}};
  for (const Case& each : cases) {
    GraphBuilder graph;
    graph.input("x", {-1, 4}).initializer("lengths", each.lengths).initializer("at", Tensor::scalar(each.position));
    graph.output("part").output("count").output("again");
    graph.node("SplitToSequence", {"x", "lengths"}, {"list"}).set("axis", 1).set("keepdims", 0);
    graph.node("SequenceAt", {"list", "at"}, {"part"});
    graph.node("SequenceLength", {"list"}, {"count"});
    graph.node("SequenceConstruct", {"part", "part"}, {"pair"});
    graph.node("ConcatFromSequence", {"pair"}, {"again"}).set("axis", 0).set("new_axis", 1);
    const Program program = parse(graph);
    for (const char* op : {"list_split", "list_at", "list_length", "list_of", "list_stack"}) CHECK_FALSE(holds(program, op));
    const Tensor x = Tensor::from<float>({0, 1, 2, 3}, {1, 4});
    const RunResult result = testing::run_fifo(run(program, Feeds{{"x", x}}));
    CHECK(result["part"].tensor().copy_to(CpuPlace{}).to_vector<float>() == each.picked);
    CHECK(result["part"].tensor().rank() == (each.lengths.rank() == 0 && each.lengths.item_int() == 1 ? 1 : 2));
    CHECK(result["again"].tensor().dim(0) == 2);
  }
}

TEST_CASE("A list that does not fit what it is made of stays one, and a run says why") {
  GraphBuilder graph;
  graph.input("x", {2, 4}).initializer("lengths", Tensor::from<std::int64_t>({1, 2})).initializer("at", Tensor::scalar<std::int64_t>(1));
  graph.output("part");
  graph.node("SplitToSequence", {"x", "lengths"}, {"list"}).set("axis", 1);
  graph.node("SequenceAt", {"list", "at"}, {"part"});
  const Program program = parse(graph);
  CHECK(holds(program, "list_split"));
  CHECK_THROWS_AS(testing::run_fifo(run(program, Feeds{{"x", Tensor::from<float>({0, 1, 2, 3, 4, 5, 6, 7}, {2, 4})}})), Error);
}

TEST_CASE("Sequences and optionals are inputs and outputs of a graph") {
  GraphBuilder graph;
  list_input(graph, "list");
  *graph.graph.add_input() = graph.graph.input(0);
  graph.graph.mutable_input(1)->set_name("maybe");
  *graph.graph.mutable_input(1)->mutable_type()->mutable_optional_type()->mutable_elem_type() = graph.graph.input(0).type();
  graph.output("y").output("there").output("none");
  graph.node("OptionalGetElement", {"maybe"}, {"y"});
  graph.node("OptionalHasElement", {"maybe"}, {"there"});
  onnx::NodeProto& none = *graph.graph.add_node();
  none.set_op_type("Optional");
  none.add_output("none");
  none.add_attribute()->set_name("type");
  none.mutable_attribute(0)->set_type(onnx::AttributeProto::TYPE_PROTO);
  *none.mutable_attribute(0)->mutable_tp() = graph.graph.input(0).type();
  const Program program = parse(graph);
  CHECK(program.var(program.inputs()[0].var).type.to_string() == "list<f32[3]>");
  CHECK(program.var(program.inputs()[1].var).type.to_string() == "optional<list<f32[3]>>");
  CHECK(type_of(program, 0) == "list<f32[3]>");
  CHECK(type_of(program, 1) == "bool[]");
  CHECK(type_of(program, 2) == "optional<list<f32 empty>>");
}

TEST_CASE("An If whose condition follows from known extents takes its branch when it is imported") {
  const auto branch = [](const std::vector<std::int64_t>& extents, std::int64_t axis) {
    GraphBuilder then;
    then.output("a");
    then.node("Reshape", {"x", "wide"}, {"a"});
    GraphBuilder otherwise;
    otherwise.output("b");
    otherwise.node("Identity", {"x"}, {"b"});
    GraphBuilder graph;
    graph.input("x", extents).output("y");
    graph.initializer("axis", Tensor::scalar(axis)).initializer("two", Tensor::scalar<std::int64_t>(2));
    graph.initializer("wide", Tensor::from<std::int64_t>({-1}));
    graph.node("Shape", {"x"}, {"shape"});
    graph.node("Gather", {"shape", "axis"}, {"extent"});
    graph.node("Equal", {"extent", "two"}, {"is"});
    graph.node("If", {"is"}, {"y"}).set("then_branch", then.graph).set("else_branch", otherwise.graph);
    return parse(graph);
  };
  CHECK(type_of(branch({-1, 2}, 1), 0) == "f32[?]");
  CHECK(type_of(branch({-1, 3}, -1), 0) == "f32[?, 3]");
  CHECK_FALSE(holds(branch({-1, 2}, 1), "if"));
  CHECK(holds(branch({-1, 2}, 0), "if"));
}

TEST_CASE("What lists cannot do is refused by the name of the node") {
  CHECK(
      has(refused<ProgramError>(appending("SequenceErase")), "node 'longer' (SequenceErase): block 1, op list_erase: expected i64 or i32"));
  GraphBuilder graph = appending();
  graph.node("SequenceInsert", {"list", "n"}, {"z"});
  CHECK(has(refused<ProgramError>(graph), "(SequenceInsert): block 0, op list_insert: expected an element of the list's dtype"));
  graph = appending();
  graph.node("SequenceConstruct", {"x", "n"}, {"z"});
  CHECK(has(refused<ProgramError>(graph), "(SequenceConstruct): block 0, op list_of: expected one dtype"));
  graph = appending();
  graph.node("SequenceConstruct", {}, {"z"});
  CHECK(has(refused<ProgramError>(graph), "expected at least one element, found none"));
  graph = appending();
  graph.node("SequenceAt", {"x", "n"}, {"z"});
  CHECK(has(refused<ProgramError>(graph), "expected a list as input List, found 'x' of f32[2, 3]"));
  graph = appending();
  graph.node("ConcatFromSequence", {"list"}, {"z"});
  CHECK(has(refused<ProgramError>(graph), "attribute axis: expected a number, found none"));
  graph = appending();
  graph.node("Tanh", {"list"}, {"z"});
  CHECK(has(refused<ProgramError>(graph), "expected a tensor as input X, found 'while_1' of list<f32[2, 3]>"));
  graph = appending();
  graph.node("Optional", {}, {"z"});
  CHECK(has(refused<ProgramError>(graph), "expected an input or the attribute type, found neither"));
  graph = appending();
  graph.node("SequenceMap", {"x"}, {"z"}).set("body", GraphBuilder().graph);
  CHECK(has(refused<ProgramError>(graph), "(SequenceMap): expected a sequence as input 0"));
  graph = appending();
  graph.node("SequenceMap", {"list"}, {"z"}).set("body", GraphBuilder().graph);
  CHECK(has(refused<ProgramError>(graph), "attribute body: expected a graph of 1 inputs and 1 outputs, found 0 and 0"));
  graph = appending();
  list_input(graph, "of lists").mutable_sequence_type()->mutable_elem_type()->mutable_sequence_type();
  CHECK(has(refused<UnsupportedError>(graph), "input 'of lists': expected a tensor, a sequence or an optional"));
}

TEST_CASE("A loop whose lists change their dtype, or that scans lists, is refused") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).output("go").output("other");
  body.graph.add_input()->set_name("list");
  body.node("SequenceConstruct", {"i"}, {"other"});
  GraphBuilder graph;
  graph.input("n", {}, onnx::TensorProto::INT64).output("y");
  graph.node("SequenceEmpty", {}, {"none"});
  graph.node("Loop", {"n", "", "none"}, {"y"}).set("body", body.graph);
  CHECK(has(refused<ProgramError>(graph), "expected a body that hands on 'list' as list<f32 empty>, found list<i64[]>"));
  body.graph.mutable_input()->RemoveLast();
  graph = GraphBuilder();
  graph.input("n", {}, onnx::TensorProto::INT64).output("y");
  graph.node("Loop", {"n", ""}, {"y"}).set("body", body.graph);
  CHECK(has(refused<ProgramError>(graph), "(Loop): expected tensors to scan, found list<i64[]>"));
}

TEST_CASE("A damaged model with lists is read or refused in one line and never more") {
  GraphBuilder mapped;
  list_input(mapped, "list");
  GraphBuilder body;
  body.input("each", {3}).output("y");
  body.node("Tanh", {"each"}, {"y"});
  mapped.output("ys");
  mapped.node("SequenceMap", {"list"}, {"ys"}).set("body", body.graph);
  const std::string files[] = {appending().bytes(), mapped.bytes()};
  for (const std::uint64_t seed : testing::seeds(2000)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    try {
      check(parse_onnx(testing::damaged(files[seed % 2], random), "m"));
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("A value that grows in one branch of an iteration is not taken to stay empty") {
  GraphBuilder as_is;
  as_is.output("same");
  as_is.node("Identity", {"s"}, {"same"});
  GraphBuilder grown;
  grown.output("longer");
  grown.node("Concat", {"s", "x"}, {"longer"}).set("axis", 0);
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("s", {}).output("go").output("next");
  body.node("If", {"add"}, {"next"}).set("then_branch", grown.graph).set("else_branch", as_is.graph);
  GraphBuilder graph;
  graph.input("x", {2}).input("n", {}, onnx::TensorProto::INT64).input("add", {}, onnx::TensorProto::BOOL).output("y").output("extents");
  graph.initializer("none", Tensor(DType::f32, DDim{0}));
  graph.node("Loop", {"n", "", "none"}, {"y"}).set("body", body.graph);
  graph.node("Shape", {"y"}, {"extents"});
  const Program program = parse(graph);
  CHECK(type_of(program, 0) == "f32[?]");
  CHECK(holds(program, "shape"));
}

}  // namespace
}  // namespace millrace
