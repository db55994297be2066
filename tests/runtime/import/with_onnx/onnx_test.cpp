// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/import/onnx.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include <runtime/import/with_onnx/model_builder.h>
#include <support/bytes.h>
#include <support/drive.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/import/file.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<std::int64_t>;

Program parse(const GraphBuilder& graph, int opset = 17, const OnnxOptions& options = {}) {
  Program program = parse_onnx(graph.bytes(opset), "m.onnx", options);
  check(program);
  CHECK(print(parse_program(print(program), [&] {
          std::map<std::string, Tensor> weights;
          for (const auto& [var, value] : program.parameters()) weights.emplace(program.var(var).name, value);
          return weights;
        }())) == print(program));
  return program;
}

std::vector<std::string> ops_of(const Program& program, int block = 0) {
  std::vector<std::string> names;
  for (const Op& op : program.block(block).ops) names.push_back(op.type);
  return names;
}

const Op& find_op(const Program& program, const std::string& type, int block = 0) {
  for (const Op& op : program.block(block).ops)
    if (op.type == type) return op;
  FAIL("no op ", type, " in ", program.to_string());
  return program.block(block).ops.front();
}

Tensor ones(const DDim& dims) { return make_darray(dims, 1.0f); }
Tensor list(const Ints& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}); }

/// x [?, 3] through W, then relu.
GraphBuilder dense() {
  GraphBuilder graph;
  graph.input("x:0", {-1, 3}).initializer("W", ones({3, 2})).output("y");
  graph.node("MatMul", {"x:0", "W"}, {"xw"}).name("product");
  graph.node("Relu", {"xw"}, {"y"});
  return graph;
}

GraphBuilder lstm(std::int64_t directions = 1) {
  GraphBuilder graph;
  graph.input("x", {5, -1, 3}).initializer("W", ones({directions, 8, 3})).initializer("R", ones({directions, 8, 2}));
  graph.initializer("B", ones({directions, 16})).output("y").output("yh").output("yc");
  return graph;
}

TEST_CASE("Inputs and outputs keep their names, named extents are unknown, initializers are weights") {
  const Program program = parse(dense());
  REQUIRE(program.inputs().size() == 1);
  CHECK(program.inputs()[0].name == "x:0");
  CHECK(program.var(program.inputs()[0].var).type == VarType(DType::f32, DDim{DDim::unknown, 3}));
  REQUIRE(program.outputs().size() == 1);
  CHECK(program.outputs()[0].name == "y");
  CHECK(program.var(program.outputs()[0].var).type == VarType(DType::f32, DDim{DDim::unknown, 2}));
  CHECK(program.parameters().size() == 1);
  CHECK(ops_of(program) == std::vector<std::string>{"matmul", "relu"});
}

TEST_CASE("An input with an initializer is a weight, and an input may be made constant") {
  GraphBuilder graph = dense();
  graph.input("W", {3, 2});
  CHECK(parse(graph).inputs().size() == 1);
  OnnxOptions options;
  options.constants.emplace("x:0", ones({4, 3}));
  const Program program = parse(dense(), 17, options);
  CHECK(program.inputs().empty());
  CHECK(program.var(program.outputs()[0].var).type.shape == DDim{4, 2});
  options.constants = {{"x:0", ones({4, 2})}};
  CHECK_THROWS_WITH_AS(parse(dense(), 17, options), doctest::Contains("m.onnx: input 'x:0': expected a constant of f32[?, 3]"),
                       ProgramError);
  options.constants = {{"z", ones({4, 2})}};
  CHECK_THROWS_WITH_AS(parse(dense(), 17, options), doctest::Contains("'z'"), ProgramError);
}

TEST_CASE("All missing ops are listed at once with their nodes, those inside sub-graphs too") {
  GraphBuilder graph = dense();
  graph.node("Frobnicate", {"xw"}, {"a"}).name("first");
  graph.node("Frobnicate", {"xw"}, {"b"});
  graph.node("Relu", {"xw"}, {"c"}).domain("com.example").name("other");
  GraphBuilder branch;
  branch.output("d");
  branch.node("Det", {"xw"}, {"d"}).name("inner");
  graph.node("If", {"x:0"}, {"e"}).set("then_branch", branch.graph).set("else_branch", GraphBuilder().graph);
  CHECK_THROWS_WITH_AS(parse(graph),
                       "m.onnx: expected ops that this library has, found 3 that it has not: 'Det' (node 'inner'); "
                       "'Frobnicate' (nodes 'first', 'b'); 'com.example.Relu' (node 'other')",
                       UnsupportedError);
}

TEST_CASE("Errors name file, node, expected and found") {
  GraphBuilder graph = dense();
  graph.node("MatMul", {"W", "W"}, {"z"}).name("square");
  CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("m.onnx: node 'square' (MatMul): "), ProgramError);
  graph = dense();
  graph.node("Relu", {"later"}, {"z"});
  CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("node 'z' (Relu): input 'later': expected a value that is given before"),
                       ProgramError);
  graph = dense();
  graph.node("Relu", {"xw"}, {"y"});
  CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("found 'y' twice"), ProgramError);
  graph = dense();
  graph.output("none");
  CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("output 'none': expected a node that gives it"), ProgramError);
  graph = dense();
  graph.node("Conv", {"xw", "W"}, {"z"}).name("flat");
  CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("m.onnx: node 'flat' (Conv): expected x [N, C, D1, …], weights of the same rank"),
                       ProgramError);
  graph = dense();
  graph.node("Softmax", {"xw"}, {"z"}).set("axis", "one");
  CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("attribute axis: expected an integer"), ParseError);
  graph = dense();
  graph.input("s", {}, onnx::TensorProto::STRING);
  CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("m.onnx: input 's': expected elements of f64"), UnsupportedError);
}

TEST_CASE("Opsets 6 to 24 are read, others are refused") {
  for (const int opset : {6, 13, 24}) CHECK_NOTHROW(parse(dense(), opset));
  CHECK_THROWS_WITH_AS(parse(dense(), 5), "m.onnx: expected opset 6 to 24, found 5", UnsupportedError);
  CHECK_THROWS_AS(parse(dense(), 25), UnsupportedError);
  CHECK_THROWS_WITH_AS(parse(dense(), 0), "m.onnx: expected opset 6 to 24, found none", UnsupportedError);
}

TEST_CASE("What was an attribute and became an input says the same in both forms") {
  const auto imported = [](int opset, const std::function<void(GraphBuilder&)>& add) {
    GraphBuilder graph;
    graph.input("x", {1, 4, 6}).output("y");
    add(graph);
    const std::string text = print(parse(graph, opset));
    return text.substr(text.find("block"));
  };
  const auto same = [&](int old_opset, const std::function<void(GraphBuilder&)>& old_form,
                        const std::function<void(GraphBuilder&)>& new_form) {
    CHECK(imported(old_opset, old_form) == imported(18, new_form));
  };
  same(
      12, [](GraphBuilder& g) { g.node("Squeeze", {"x"}, {"y"}).set("axes", Ints{0}); },
      [](GraphBuilder& g) { g.initializer("a", list({0})).node("Squeeze", {"x", "a"}, {"y"}); });
  same(
      12, [](GraphBuilder& g) { g.node("Unsqueeze", {"x"}, {"y"}).set("axes", Ints{0, -1}); },
      [](GraphBuilder& g) { g.initializer("a", list({0, -1})).node("Unsqueeze", {"x", "a"}, {"y"}); });
  same(
      9, [](GraphBuilder& g) { g.node("Slice", {"x"}, {"y"}).set("starts", Ints{1}).set("ends", Ints{-1}).set("axes", Ints{2}); },
      [](GraphBuilder& g) {
        g.initializer("s", list({1})).initializer("e", list({-1})).initializer("a", list({2})).node("Slice", {"x", "s", "e", "a"}, {"y"});
      });
  same(
      10, [](GraphBuilder& g) { g.node("Pad", {"x"}, {"y"}).set("pads", Ints{0, 0, 1, 0, 0, 2}).set("mode", "reflect"); },
      [](GraphBuilder& g) {
        g.initializer("p", list({1, 2})).initializer("a", list({2})).node("Pad", {"x", "p", "", "a"}, {"y"}).set("mode", "reflect");
      });
  same(
      17, [](GraphBuilder& g) { g.node("ReduceMean", {"x"}, {"y"}).set("axes", Ints{-1}); },
      [](GraphBuilder& g) { g.initializer("a", list({-1})).node("ReduceMean", {"x", "a"}, {"y"}); });
  same(
      12, [](GraphBuilder& g) { g.node("Split", {"x"}, {"y", "z"}).set("axis", 2).set("split", Ints{3, 3}); },
      [](GraphBuilder& g) { g.node("Split", {"x"}, {"y", "z"}).set("axis", 2).set("num_outputs", 2); });
  same(
      12, [](GraphBuilder& g) { g.node("Softmax", {"x"}, {"y"}).set("axis", 2); },
      [](GraphBuilder& g) { g.node("Softmax", {"x"}, {"y"}); });
}

TEST_CASE("Softmax of old opsets is over all axes from its own on") {
  GraphBuilder graph;
  graph.input("x", {2, 3, 4}).output("y");
  graph.node("Softmax", {"x"}, {"y"});
  CHECK(ops_of(parse(graph, 12)) == std::vector<std::string>{"flatten", "softmax", "shape", "reshape_to"});
  CHECK(ops_of(parse(graph, 13)) == std::vector<std::string>{"softmax"});
}

TEST_CASE("Shapes that the file holds become attributes, those that a run computes stay inputs") {
  GraphBuilder graph;
  graph.input("x", {-1, 6}).input("s", {2}, onnx::TensorProto::INT64).output("y").output("z");
  graph.node("Constant", {}, {"shape"}).set("value", testing::tensor_proto("", list({-1, 3})));
  graph.node("Reshape", {"x", "shape"}, {"y"});
  graph.node("Reshape", {"x", "s"}, {"z"});
  const Program program = parse(graph);
  CHECK(ops_of(program) == std::vector<std::string>{"reshape", "reshape_to"});
  CHECK(program.block(0).ops[0].attributes.get<Ints>("shape") == Ints{-1, 3});
  CHECK(program.parameters().empty());
}

TEST_CASE("Shapes and axes that a graph computes of what is known are as good as those that the file holds") {
  const auto two = [](GraphBuilder& graph, const std::vector<std::string>& inputs) {
    graph.initializer("zero", list({0})).initializer("one", list({1})).initializer("four", list({4})).output("y");
    graph.node("Shape", {"x"}, {"s"});
    graph.node("Gather", {"s", "zero"}, {"first"});
    graph.node("Concat", inputs, {"shape"}).set("axis", 0);
    graph.node("Reshape", {"x", "shape"}, {"y"});
    const Program program = parse(graph);
    for (const Op& op : program.block(0).ops)
      if (op.outputs[0] == program.outputs()[0].var) return op.type == "reshape" ? op.attributes.get<Ints>("shape") : Ints{};
    return Ints{99};
  };
  GraphBuilder known, first, second, both;
  known.input("x", {2, 12}).initializer("three", Tensor::from<float>({3})).node("Cast", {"three"}, {"rows"}).set("to", 7);
  CHECK(two(known, {"first", "rows", "four"}) == Ints{2, 3, 4});
  // The extent of an axis that stays where it was is copied, one other is what is left.
  CHECK(two(first.input("x", {-1, 12}).initializer("minus", list({-1})), {"first", "four", "minus"}) == Ints{0, 4, -1});
  CHECK(two(second.input("x", {-1, 8}), {"four", "first", "one"}) == Ints{4, -1, 1});
  // Two that only a run knows stay a computed shape.
  both.input("x", {-1, -1, 8}).initializer("two", list({2})).node("Shape", {"x"}, {"t"});
  both.node("Gather", {"t", "one"}, {"second"});
  CHECK(two(both, {"second", "first", "two", "four"}).empty());
}

TEST_CASE("An LSTM is a while loop in the canonical form") {
  GraphBuilder graph = lstm();
  graph.node("LSTM", {"x", "W", "R", "B"}, {"y", "yh", "yc"}).set("hidden_size", 2).name("rnn");
  const Program program = parse(graph);
  const Op& loop = find_op(program, "while");
  REQUIRE(loop.inputs.size() == 3);
  const Tensor* zero = program.constant(loop.inputs[0]);
  REQUIRE(zero != nullptr);
  CHECK(zero->item_int() == 0);
  const int body = loop.attributes.get<BlockId>("sub_block").index;
  const auto& ops = program.block(body).ops;
  REQUIRE(ops_of(program, body) ==
          std::vector<std::string>{"equal", "break_if", "tensor_array_read", "lstm_cell", "tensor_array_write", "constant", "add"});
  const std::vector<VarId>& params = program.block(body).params;
  CHECK(ops[0].inputs[0] == params[0]);
  CHECK(ops[0].inputs[1] == find_op(program, "tensor_array_size").outputs[0]);
  CHECK(ops[1].inputs == std::vector<VarId>{ops[0].outputs[0], params[0], params[1], params[2]});
  CHECK(ops[2].inputs == std::vector<VarId>{find_op(program, "tensor_array_unstack").outputs[0], params[0]});
  CHECK(ops[3].inputs[0] == ops[2].outputs[0]);
  CHECK(ops[4].inputs[1] == params[0]);
  CHECK(ops[4].inputs[2] == ops[3].outputs[0]);
  CHECK(program.block(body).results == std::vector<VarId>{ops[6].outputs[0], ops[3].outputs[0], ops[3].outputs[1]});
  const auto type = [&](std::size_t output) { return program.var(program.outputs()[output].var).type.to_string(); };
  CHECK(type(0) == "f32[?, 1, ?, 2]");
  CHECK(type(1) == "f32[1, ?, 2]");
  CHECK(type(2) == "f32[1, ?, 2]");
}

TEST_CASE("Both directions are two loops, and layout 1 has the batch first") {
  GraphBuilder graph = lstm(2);
  graph.node("LSTM", {"x", "W", "R", "B"}, {"y", "yh", "yc"}).set("hidden_size", 2).set("direction", "bidirectional").set("layout", 1);
  const Program program = parse(graph);
  const std::vector<std::string> ops = ops_of(program);
  CHECK(std::count(ops.begin(), ops.end(), "while") == 2);
  CHECK(std::count(ops.begin(), ops.end(), "reverse") == 2);
  CHECK(program.var(program.outputs()[0].var).type.to_string() == "f32[5, ?, 2, 2]");
  CHECK(program.var(program.outputs()[1].var).type.to_string() == "f32[5, 2, 2]");
}

TEST_CASE("Attributes, shapes and lengths of an LSTM that are wrong are refused by name") {
  const auto refused = [](const std::function<void(testing::NodeBuilder)>& change) {
    GraphBuilder graph = lstm();
    change(graph.node("LSTM", {"x", "W", "R", "B"}, {"y", "yh", "yc"}));
    parse(graph);
  };
  CHECK_THROWS_WITH_AS(refused([](testing::NodeBuilder node) { node.set("direction", "sideways"); }), doctest::Contains("found 'sideways'"),
                       ParseError);
  CHECK_THROWS_WITH_AS(refused([](testing::NodeBuilder node) { node.set("activations", std::vector<std::string>{"Tanh"}); }),
                       doctest::Contains("activations: expected 3, found 1"), ProgramError);
  CHECK_THROWS_WITH_AS(refused([](testing::NodeBuilder node) { node.set("activations", std::vector<std::string>{"Tanh", "Tanh", "Tan"}); }),
                       doctest::Contains("found 'Tan'"), UnsupportedError);
  CHECK_THROWS_WITH_AS(refused([](testing::NodeBuilder node) { node.set("hidden_size", 3); }),
                       doctest::Contains("input W: expected f32[1, 12, 3], found 'W' of f32[1, 8, 3]"), ProgramError);
  CHECK_THROWS_WITH_AS(refused([](testing::NodeBuilder node) { node.set("direction", "bidirectional"); }),
                       doctest::Contains("input W: expected f32[2, 8, 3], found 'W' of f32[1, 8, 3]"), ProgramError);
  CHECK_THROWS_WITH_AS(refused([](testing::NodeBuilder node) { node.set("clip", -1.0f); }), doctest::Contains("clip: expected 0 or more"),
                       ProgramError);
}

/// x [5, 2, 3] through an RNN of 2 units whose lengths are those given.
std::vector<Tensor> run_lengths(const std::vector<std::int32_t>& lengths, const char* direction) {
  GraphBuilder graph;
  graph.input("x", {-1, -1, 3}).input("lens", {-1}, onnx::TensorProto::INT32).output("y").output("yh");
  graph.initializer("W", ones({1, 2, 3})).initializer("R", ones({1, 2, 2})).initializer("h0", ones({1, 2, 2}));
  graph.node("RNN", {"x", "W", "R", "", "lens", "h0"}, {"y", "yh"})
      .set("direction", direction)
      .set("activations", std::vector<std::string>{"Affine"});
  Tensor x = make_darray({5, 2, 3}, 1.0f);
  const Feeds feeds{{"x", x}, {"lens", Tensor::from(lengths, DDim{2})}};
  const RunResult result = testing::run_fifo(run(parse(graph), feeds));
  return {result["y"].tensor(), result["yh"].tensor()};
}

TEST_CASE("Sequences of unequal lengths end at their own ends: zeros behind, the last state kept, none of a sequence without steps") {
  // h' = (h + h) + 3 from 1: 5, 13, 29, 61, 125.
  for (const char* direction : {"forward", "reverse"}) {
    const std::vector<Tensor> some = run_lengths({2, 0}, direction);
    const bool forward = std::string(direction) == "forward";
    const auto y = [&](std::int64_t t, std::int64_t n) { return std::as_const(some[0])[DDim{t, 0, n, 1}]; };
    CHECK(y(0, 0) == (forward ? 5 : 13));
    CHECK(y(1, 0) == (forward ? 13 : 5));
    CHECK(y(2, 0) == 0);
    for (std::int64_t t = 0; t < 5; ++t) CHECK(y(t, 1) == 0);
    CHECK(std::as_const(some[1])[DDim{0, 0, 0}] == 13);
    CHECK(std::as_const(some[1])[DDim{0, 1, 0}] == 0);
  }
  CHECK(std::as_const(run_lengths({5, 1}, "forward")[1])[DDim{0, 0, 1}] == 125);
  CHECK_THROWS_WITH_AS(run_lengths({6, 1}, "forward"), doctest::Contains("expected lengths of 0 to 5, found 6"), IndexError);
  CHECK_THROWS_WITH_AS(run_lengths({-1, 1}, "forward"), doctest::Contains("expected lengths of 0 to 5, found -1"), IndexError);
}

TEST_CASE("A forward layer that has no lengths is a recurrence, whatever the layer and the layout") {
  const std::vector<std::pair<const char*, std::int64_t>> kinds = {{"RNN", 1}, {"GRU", 3}, {"LSTM", 4}};
  for (const auto& [op, gates] : kinds) {
    for (const int layout : {0, 1}) {
      INFO(op, ", layout ", layout);
      GraphBuilder graph;
      graph.input("x", layout == 0 ? Ints{-1, 1, 3} : Ints{1, -1, 3}).output("y").output("yh");
      graph.initializer("W", ones({1, 2 * gates, 3})).initializer("R", ones({1, 2 * gates, 2})).initializer("B", ones({1, 4 * gates}));
      graph.node(op, {"x", "W", "R", "B"}, {"y", "yh"}).set("hidden_size", 2).set("layout", layout);
      const Recurrence recurrence = make_recurrence(parse(graph));
      CHECK(recurrence.states.size() == (gates == 4 ? 2 : 1));
      CHECK(recurrence.at_end == std::vector<std::string>{"yh"});
    }
  }
  GraphBuilder graph = lstm();
  graph.node("LSTM", {"x", "W", "R", "B"}, {"y", "yh", "yc"}).set("direction", "reverse");
  CHECK_THROWS_AS(make_recurrence(parse(graph)), UnsupportedError);
}

TEST_CASE("A shape that doubles from node to node costs no more than its nodes") {
  GraphBuilder graph;
  graph.input("x", {-1, -1}).output("y");
  graph.node("Shape", {"x"}, {"s0"});
  for (int i = 0; i < 60; ++i)
    graph.node("Concat", {"s" + std::to_string(i), "s" + std::to_string(i)}, {"s" + std::to_string(i + 1)}).set("axis", 0);
  graph.node("Gather", {"s60", "s0"}, {"y"});
  CHECK_NOTHROW(parse_onnx(graph.bytes(17), "m.onnx", {}));
}

TEST_CASE("An initial state and a reshape that an exporter computes from the shape of live rows leave a layer live") {
  GraphBuilder graph;
  graph.input("x", {1, -1, 3}).output("z").initializer("W", ones({1, 6, 3})).initializer("R", ones({1, 6, 2}));
  graph.initializer("zero", list({0})).initializer("one", list({1})).initializer("two", list({2}));
  graph.node("Shape", {"x"}, {"s"});
  graph.node("Gather", {"s", "zero"}, {"batch"});
  graph.node("Concat", {"one", "batch", "two"}, {"dims"}).set("axis", 0);
  graph.node("ConstantOfShape", {"dims"}, {"h0"});
  graph.node("Transpose", {"x"}, {"t"}).set("perm", Ints{1, 0, 2});
  graph.node("GRU", {"t", "W", "R", "", "", "h0"}, {"y"}).set("hidden_size", 2);
  graph.node("Squeeze", {"y", "one"}, {"rows"});
  graph.node("Shape", {"rows"}, {"of_rows"});
  graph.node("Gather", {"of_rows", "zero"}, {"steps"});
  graph.node("Concat", {"steps", "two"}, {"flat"}).set("axis", 0);
  graph.node("Reshape", {"rows", "flat"}, {"z"});
  const Recurrence recurrence = make_recurrence(parse(graph));
  CHECK(recurrence.states.size() == 1);
  CHECK(recurrence.outputs[0].row == DDim{2});
}

TEST_CASE("If becomes two blocks that see the vars around them") {
  GraphBuilder graph;
  graph.input("c", {}, onnx::TensorProto::BOOL).input("x", {2, 1}).output("y");
  GraphBuilder then;
  then.output("a");
  then.node("Squeeze", {"x"}, {"a"});
  GraphBuilder otherwise;
  otherwise.output("x");
  graph.node("If", {"c"}, {"y"}).set("then_branch", then.graph).set("else_branch", otherwise.graph);
  const Program program = parse(graph);
  CHECK(ops_of(program) == std::vector<std::string>{"if"});
  CHECK(ops_of(program, 1) == std::vector<std::string>{"squeeze"});
  CHECK(ops_of(program, 2) == std::vector<std::string>{"identity"});
  CHECK(program.var(program.outputs()[0].var).type.to_string() == "f32[*]");
}

TEST_CASE("A loop whose values change their shape from turn to turn is given types that hold for every turn") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64)
      .input("go", {}, onnx::TensorProto::BOOL)
      .input("s", {})
      .output("go")
      .output("longer")
      .output("first");
  body.node("Concat", {"s", "s"}, {"longer"}).set("axis", 0);
  body.node("ReduceMax", {"s"}, {"first"}).set("keepdims", 0);
  GraphBuilder graph;
  graph.input("x", {3}).input("n", {}, onnx::TensorProto::INT64).output("y").output("all");
  graph.node("Loop", {"n", "", "x"}, {"y", "all"}).set("body", body.graph);
  const Program program = parse(graph);
  const Op& loop = find_op(program, "while");
  CHECK(program.var(loop.outputs[1]).type.to_string() == "f32[?]");
  CHECK(program.blocks().size() == 2);
  CHECK(program.var(program.outputs()[1].var).type.to_string() == "f32[?]");
}

TEST_CASE("External tensors lie beneath the model and have the bytes they claim") {
  const testing::ScratchFolder folder;
  std::filesystem::create_directories(folder / "models/data");
  write_file(folder / "models/data/w", std::string(4, '\0') + std::string("\0\0\x80\x3f\0\0\0\x40", 8));
  write_file(folder / "outside", std::string(64, '\0'));
  std::filesystem::create_symlink("data/w", folder / "models/link");
  std::filesystem::create_directory_symlink("data", folder / "models/folder");
  const auto import = [&](const std::string& location, const std::string& offset, const std::string& length, std::int64_t count = 2) {
    GraphBuilder graph;
    graph.input("x", {count}).output("y");
    graph.node("Add", {"x", "w"}, {"y"});
    onnx::TensorProto& w = *graph.graph.add_initializer();
    w.set_name("w");
    w.set_data_type(onnx::TensorProto::FLOAT);
    w.add_dims(count);
    w.set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] : {std::pair("location", location), std::pair("offset", offset), std::pair("length", length)}) {
      if (value.empty()) continue;
      w.add_external_data()->set_key(key);
      w.mutable_external_data()->rbegin()->set_value(value);
    }
    write_file(folder / "models/m.onnx", graph.bytes());
    const Program program = import_onnx(folder / "models/m.onnx");
    return program.parameters().begin()->second.to_vector<float>();
  };
  CHECK(import("data/w", "4", "8") == std::vector<float>{1, 2});
  CHECK(import("data/w", "4", "") == std::vector<float>{1, 2});
  for (const std::string location : {"../outside", "data/../../outside", "/etc/passwd", "", "data//w", "link", "folder/w"}) {
    INFO("location ", location);
    CHECK_THROWS_WITH_AS(import(location, "", ""), doctest::Contains("external data"), ParseError);
  }
  CHECK_THROWS_WITH_AS(import("data/w", "8", "8"), doctest::Contains("found a file of 12"), ParseError);
  CHECK_THROWS_AS(import("data/w", "9223372036854775807", "8"), ParseError);
  CHECK_THROWS_AS(import("data/w", "-4", "8"), ParseError);
  CHECK_THROWS_AS(import("data/w", "4", "4"), ParseError);
  CHECK_THROWS_AS(import("data/w", "0", "", std::int64_t{1} << 40), ParseError);
  CHECK_THROWS_WITH_AS(import("none", "", ""), doctest::Contains("No such file"), IoError);
  CHECK_THROWS_AS(import("data", "", ""), IoError);
}

TEST_CASE("Tensors whose bytes are not what their shape says are refused before anything is allocated") {
  for (const Ints& extents : {Ints{1}, Ints{1 << 30, 1 << 30, 1 << 30}, Ints{-1}, Ints{0, std::int64_t{1} << 62, 16}, Ints(12, 1)}) {
    GraphBuilder graph = dense();
    onnx::TensorProto& w = *graph.graph.add_initializer();
    w.set_name("bad");
    w.set_data_type(onnx::TensorProto::FLOAT);
    for (const std::int64_t extent : extents) w.add_dims(extent);
    w.set_raw_data("12345678");
    CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("m.onnx: initializer 'bad': expected"), ParseError);
  }
}

TEST_CASE("Numbers beyond all sense are refused and overflow nothing") {
  const std::int64_t huge = std::int64_t{1} << 62;
  GraphBuilder graph = dense();
  graph.input("big", {huge, huge});
  CHECK_THROWS_WITH_AS(parse(graph), doctest::Contains("m.onnx: input 'big': expected a shape"), ParseError);
  graph = dense();
  graph.input("u", {1, 1, 1}).graph.mutable_input(1)->mutable_type()->mutable_tensor_type()->clear_shape();
  GraphBuilder unranked = graph;
  unranked.node("Conv", {"u", "u"}, {"z"}).set("kernel_shape", Ints{huge}).set("auto_pad", "SAME_UPPER");
  CHECK_THROWS_WITH_AS(parse(unranked), doctest::Contains("attribute kernel_shape: expected 1 to"), ParseError);
  unranked = graph;
  unranked.node("LayerNormalization", {"u", "u"}, {"z", "mean"}).set("axis", -2'000'000'000);
  CHECK_THROWS_AS(parse(unranked), ProgramError);
  unranked = graph;
  unranked.node("LSTM", {"u", "u", "u", "u"}, {"z"}).set("hidden_size", 2'000'000'000);
  CHECK_THROWS_WITH_AS(parse(unranked), doctest::Contains("attribute hidden_size: expected 1 to"), UnsupportedError);
}

TEST_CASE("Names of a file cannot break an error into two lines") {
  GraphBuilder graph = dense();
  graph.output("y\nnext");
  graph.node("Relu", {"no\nne"}, {"y\nnext"}).name("bad\nname");
  std::string what;
  try {
    parse(graph);
  } catch (const Error& error) {
    what = error.what();
  }
  CHECK(what.find("bad?name") != std::string::npos);
  CHECK(what.find('\n') == std::string::npos);
}

TEST_CASE("Bytes that are no model are refused") {
  CHECK_THROWS_AS(parse_onnx("", "m"), ParseError);
  CHECK_THROWS_WITH_AS(parse_onnx("not a model", "m"), doctest::Contains("m: expected an ONNX model"), ParseError);
  // Sub-graphs within sub-graphs, deeper than any reader should follow.
  GraphBuilder inner;
  for (int depth = 0; depth < 60; ++depth) {
    GraphBuilder outer;
    outer.node("If", {"c"}, {"y"}).set("then_branch", inner.graph).set("else_branch", GraphBuilder().graph);
    inner = outer;
  }
  CHECK_THROWS_AS(parse(inner), ParseError);
}

TEST_CASE("A damaged model is read or refused in one line and never more") {
  GraphBuilder recurrent = lstm();
  recurrent.node("LSTM", {"x", "W", "R", "B"}, {"y", "yh", "yc"}).set("hidden_size", 2).name("rnn");
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64)
      .input("go", {}, onnx::TensorProto::BOOL)
      .input("s", {})
      .output("go")
      .output("s2")
      .output("s");
  body.node("Add", {"s", "s"}, {"s2"});
  GraphBuilder looping;
  looping.input("x", {3}).input("n", {}, onnx::TensorProto::INT64).output("y").output("all");
  looping.node("Loop", {"n", "", "x"}, {"y", "all"}).set("body", body.graph);
  const std::string files[] = {dense().bytes(), recurrent.bytes(), looping.bytes()};
  for (const std::uint64_t seed : testing::seeds(3000)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    try {
      check(parse_onnx(testing::damaged(files[seed % 3], random), "m"));
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace millrace
