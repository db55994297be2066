// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <runtime/models/import/with_onnx/imported.h>
#include <support/bytes.h>
#include <support/drive.h>
#include <support/program_runs.h>
#include <support/random_tensor.h>
#include <support/same_bits.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/files/file.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using testing::find_op, testing::GraphBuilder, testing::Ints, testing::list, testing::lstm, testing::ones, testing::ops_of, testing::parse,
    testing::Random, testing::random_tensor, testing::same_bits;

/// x [?, 3] through W, then relu.
GraphBuilder dense() {
  GraphBuilder graph;
  graph.input("x:0", {-1, 3}).initializer("W", ones({3, 2})).output("y");
  graph.node("MatMul", {"x:0", "W"}, {"xw"}).name("product");
  graph.node("Relu", {"xw"}, {"y"});
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

TEST_CASE(
    "Statistics of BatchNormalization, bounds of Clip and other settings are literals of any size, and weights that are read as both stay "
    "weights") {
  const auto weights = [](const GraphBuilder& graph) {
    std::set<std::string> names;
    const Program program = parse(graph);
    for (const auto& [var, value] : program.parameters()) names.insert(program.var(var).name);
    return names;
  };
  GraphBuilder graph;
  graph.input("x", {-1, 48}).output("y").initializer("mean", ones({48})).initializer("lo", Tensor::scalar(-1.0f));
  graph.initializer("scale", ones({48})).initializer("bias", ones({48}));
  graph.node("Identity", {"mean"}, {"variance"});  // as exporters write equal tensors
  graph.node("BatchNormalization", {"x", "scale", "bias", "mean", "variance"}, {"b"});
  graph.node("Clip", {"b", "lo"}, {"y"});
  CHECK(weights(graph) == std::set<std::string>{"bias", "scale"});
  GraphBuilder added = graph;
  added.output("z").node("Add", {"y", "lo"}, {"z"});
  CHECK(weights(added) == std::set<std::string>{"bias", "lo", "scale"});
  GraphBuilder given = graph;
  given.output("variance");
  CHECK(weights(given) == std::set<std::string>{"bias", "mean", "scale"});
}

TEST_CASE("An input with an initializer stays an input where that is asked for, and no other one can be fed") {
  GraphBuilder graph;
  graph.input("x", {1}, onnx::TensorProto::INT64).input("n", {1}, onnx::TensorProto::INT64).initializer("n", list({3}));
  graph.output("y").node("Add", {"x", "n"}, {"y"});
  OnnxOptions options;
  options.inputs = {"n", "nothing"};
  std::map<std::string, Tensor> defaults;
  options.defaults = &defaults;
  const Program program = parse(graph, 17, options);
  REQUIRE(program.inputs().size() == 2);
  CHECK(program.var(program.inputs()[1].var).type == VarType(DType::i64, DDim{1}));
  REQUIRE(defaults.size() == 1);
  CHECK(defaults.at("n").to_vector<std::int64_t>() == Ints{3});
  const Feeds feeds{{"x", list({1})}, {"n", list({5})}};
  CHECK(testing::run_fifo(run(program, feeds))["y"].tensor().to_vector<std::int64_t>() == Ints{6});
  CHECK_THROWS_WITH_AS(testing::run_fifo(run(parse(graph), feeds)),
                       doctest::Contains("no input 'n', which has a default value in the model, taken as a constant"), ArgumentError);
}

TEST_CASE("All missing ops are listed at once with their nodes, those inside sub-graphs too") {
  GraphBuilder graph = dense();
  graph.node("Frobnicate", {"xw"}, {"a"}).name("first");
  graph.node("Frobnicate", {"xw"}, {"b"});
  graph.node("Relu", {"xw"}, {"c"}).domain("com.example").name("other");
  GraphBuilder branch;
  branch.output("d");
  branch.node("NonMaxSuppression", {"xw"}, {"d"}).name("inner");
  graph.node("If", {"x:0"}, {"e"}).set("then_branch", branch.graph).set("else_branch", GraphBuilder().graph);
  CHECK_THROWS_WITH_AS(parse(graph),
                       "m.onnx: expected ops that this library has, found 3 that it has not: 'Frobnicate' (nodes 'first', 'b'); "
                       "'NonMaxSuppression' (node 'inner'); 'com.example.Relu' (node 'other')",
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
  graph = dense();
  graph.input("", {2});
  CHECK_THROWS_WITH_AS(parse(graph), "m.onnx: input: expected a name that is not empty and has no NUL, found ''", ProgramError);
}

TEST_CASE("Opsets 6 to 28 are read, others are refused") {
  for (const int opset : {6, 13, 24, 28}) CHECK_NOTHROW(parse(dense(), opset));
  CHECK_THROWS_WITH_AS(parse(dense(), 5), "m.onnx: expected opset 6 to 28, found 5", UnsupportedError);
  CHECK_THROWS_AS(parse(dense(), 29), UnsupportedError);
  CHECK_THROWS_WITH_AS(parse(dense(), 0), "m.onnx: expected opset 6 to 28, found none", UnsupportedError);
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
  graph.node("Constant", {}, {"shape"}).set("value", exporting::tensor_proto(list({-1, 3}), ""));
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
  CHECK(two(both, {"second", "first", "two", "four"}) == Ints{0, 0, 2, 4});
}

TEST_CASE("A shape of the extents of another tensor keeps what is known of it") {
  for (const int allow_zero : {0, 1}) {
    GraphBuilder graph;
    graph.input("x", {-1, -1, 8}).initializer("w", ones({8, 24})).initializer("heads", list({3, 2, 4})).output("y");
    graph.node("MatMul", {"x", "w"}, {"wide"});
    graph.node("Shape", {"x"}, {"steps"}).set("end", 2);
    graph.node("Concat", {"steps", "heads"}, {"shape"}).set("axis", 0);
    graph.node("Reshape", {"wide", "shape"}, {"y"}).set("allowzero", allow_zero);
    const Program program = parse(graph, 23);
    CHECK(program.var(program.outputs()[0].var).type.to_string() == "f32[?, ?, 3, 2, 4]");
    const RunResult result = testing::on_cpu(program, {{"x", ones({2, 5, 8})}});
    CHECK(result["y"].dims() == DDim{2, 5, 3, 2, 4});
  }
}

TEST_CASE("QGemm takes a C whose extents only a run knows, and one number for all") {
  for (const Ints& extents : {Ints{-1}, Ints{3}, Ints{}}) {
    GraphBuilder graph;
    graph.input("a", {-1, 2}, onnx::TensorProto::UINT8).input("c", extents, onnx::TensorProto::INT32).output("y");
    graph.initializer("one", Tensor::scalar(1.0f)).initializer("zero", Tensor::scalar(std::uint8_t{0}));
    graph.initializer("b", Tensor::from(std::vector<std::int8_t>{1, 2, 3, 4, 5, 6}, DDim{2, 3}))
        .initializer("b_zero", Tensor::scalar(std::int8_t{0}));
    graph.node("QGemm", {"a", "one", "zero", "b", "one", "b_zero", "c"}, {"y"}).domain("com.microsoft");
    const std::int64_t count = extents.empty() ? 1 : 3;
    const Tensor c =
        Tensor::from<std::int32_t>(std::vector<std::int32_t>(static_cast<std::size_t>(count), 7), extents.empty() ? DDim{} : DDim{3});
    const RunResult result = testing::on_cpu(parse(graph), {{"a", Tensor::from(std::vector<std::uint8_t>{1, 1}, DDim{1, 2})}, {"c", c}});
    CHECK(result["y"].tensor().to_vector<float>() == std::vector<float>{12, 14, 16});
  }
}

TEST_CASE("An extent behind a convolution whose rows are open is that of its input") {
  GraphBuilder graph;
  graph.input("x", {-1, 2, -1, 9}).initializer("w", ones({3, 2, 3, 3})).initializer("flat", list({0, 0, -1}));
  graph.initializer("first", Tensor::scalar(std::int64_t{0})).output("y").output("batch");
  graph.node("Conv", {"x", "w"}, {"made"}).set("dilations", Ints{2, 1}).set("pads", Ints{1, 1, 1, 1});
  graph.node("Relu", {"made"}, {"y"});
  graph.node("Transpose", {"y"}, {"turned"}).set("perm", Ints{0, 2, 3, 1});
  graph.node("Reshape", {"turned", "flat"}, {"rows"});
  graph.node("Shape", {"rows"}, {"shape"});
  graph.node("Gather", {"shape", "first"}, {"batch"});
  Program program = parse(graph);
  const std::vector<Op>& all = program.block(0).ops;
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const Op& op) { return op.type == "shape"; });
  REQUIRE(last != all.rend());
  CHECK(last->inputs == std::vector<VarId>{program.inputs()[0].var});
  lower_for_runs(program, CpuPlace{});  // nothing reads the parts of the convolution, which become one op
  const std::vector<std::string> ops = ops_of(program);
  CHECK(std::count(ops.begin(), ops.end(), "conv") == 1);
  CHECK(std::count(ops.begin(), ops.end(), "conv1d") == 0);
  CHECK(testing::on_cpu(program, {{"x", ones({4, 2, 5, 9})}})["batch"].tensor().item_int() == 4);
}

/// Attention of `heads` heads that read `shared` heads of K and V, whose numbers the file does not say.
Tensor attended(std::int64_t heads, std::int64_t shared, const Ints& declared_q, const Ints& declared_k) {
  GraphBuilder graph;
  graph.input("q", declared_q).input("k", declared_k).output("y");
  graph.node("Attention", {"q", "k", "k"}, {"y"});
  Random random(7);
  const Tensor q = random_tensor(random, {2, heads, 3, 4}), k = random_tensor(random, {2, shared, 5, 4});
  return testing::on_cpu(parse(graph, 23), {{"q", q}, {"k", k}})["y"].tensor();
}

TEST_CASE("Attention over heads whose numbers only a run knows is that over known ones") {
  for (const auto& [heads, shared] : {std::pair{4, 2}, {4, 4}, {4, 1}, {6, 2}}) {
    CAPTURE(heads);
    CAPTURE(shared);
    const Tensor known = attended(heads, shared, {2, heads, 3, 4}, {2, shared, 5, 4});
    CHECK(same_bits(attended(heads, shared, {-1, -1, -1, 4}, {-1, -1, -1, 4}), known));
    CHECK(same_bits(attended(heads, shared, {-1, -1, -1, 4}, {-1, shared, -1, 4}), known));
    CHECK(same_bits(attended(heads, shared, {-1, heads, -1, 4}, {-1, -1, -1, 4}), known));
  }
  CHECK_THROWS_AS(attended(5, 2, {-1, -1, -1, 4}, {-1, -1, -1, 4}), Error);
  CHECK_THROWS_AS(attended(2, 4, {-1, -1, -1, 4}, {-1, -1, -1, 4}), Error);
  CHECK_THROWS_WITH_AS(attended(5, 2, {2, 5, 3, 4}, {2, 2, 5, 4}),
                       doctest::Contains("expected a number of heads of Q that is a multiple of that of K"), UnsupportedError);
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

TEST_CASE("A loop whose values change their shape from iteration to iteration is given types that hold for every iteration") {
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
  CHECK_THROWS_WITH_AS(import("link", "", ""), doctest::Contains("without symbolic links"), ParseError);
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

TEST_CASE("Errors of a run name the node that the op came from, in one line") {
  GraphBuilder graph;
  graph.input("a", {2, -1}).input("b", {-1, 5}).output("y");
  graph.node("MatMul", {"a", "b"}, {"y"}).name("/encoder/att\nention/MatMul");
  CHECK_THROWS_WITH_AS(testing::on_cpu(parse(graph), {{"a", ones({2, 3})}, {"b", ones({4, 5})}}),
                       "matmul: [2, 3] and [4, 5] do not fit each other (op matmul of block 0, '/encoder/att?ention/MatMul')", ShapeError);
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

/// The importer's error about a model, or nothing.
std::string refusal_of(const GraphBuilder& graph, int opset = 17) {
  try {
    parse(graph, opset);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("An attribute that no rule reads is refused with attribute and node, whatever the op") {
  const std::pair<const char*, const char*> ops[] = {{"Relu", "alpha"}, {"Softmax", "axes"}, {"SpaceToDepth", "order"}, {"Flatten", "dim"}};
  for (const auto& [op, attribute] : ops) {
    GraphBuilder graph;
    graph.input("x", {1, 4, 6, 6}).output("y");
    auto node = graph.node(op, {"x"}, {"y"}).name("here").set(attribute, 1);
    if (std::string(op) == "SpaceToDepth") node.set("blocksize", 2);
    CAPTURE(op);
    const std::string said = refusal_of(graph);
    CHECK(said.find("node 'here' (" + std::string(op) + ")") != std::string::npos);
    CHECK(said.find("attribute '" + std::string(attribute) + "'") != std::string::npos);
  }
  GraphBuilder graph;
  graph.input("x", {2, 3}).output("y");
  graph.node("Dropout", {"x"}, {"y"}).set("seed", 3);
  CHECK(refusal_of(graph) == "");
}

TEST_CASE("A value that an attribute cannot have is refused with attribute and node") {
  const auto said = [](const char* op, const std::vector<std::string>& inputs, const std::function<void(testing::NodeBuilder&)>& set) {
    GraphBuilder graph;
    graph.input("x", {3, 2, 4}).initializer("W", ones({1, 20, 4})).initializer("R", ones({1, 20, 5})).initializer("i", list({0, 1, 1}));
    graph.initializer("u", ones({3, 2, 4})).output("y");
    testing::NodeBuilder node = graph.node(op, inputs, {"y"}).name("here");
    set(node);
    return refusal_of(graph);
  };
  using Builder = testing::NodeBuilder;
  CHECK(said("LSTM", {"x", "W", "R"}, [](Builder& node) { node.set("hidden_size", 5).set("layout", 3); }) ==
        "m.onnx: node 'here' (LSTM): attribute layout: expected 0 or 1, found 3");
  CHECK(said("Gelu", {"x"}, [](Builder& node) { node.set("approximate", "no"); }).find("expected none or tanh, found 'no'") !=
        std::string::npos);
  CHECK(said("ReduceMax", {"x"}, [](Builder& node) { node.set("keepdims", -1); }).find("attribute keepdims") != std::string::npos);
  CHECK(said("ScatterElements", {"x", "i", "u"}, [](Builder& node) { node.set("reduction", "avg"); }).find("attribute reduction") !=
        std::string::npos);
  CHECK(said("DepthToSpace", {"x"}, [](Builder& node) { node.set("blocksize", 2).set("mode", "RCD"); }) != "");
  GraphBuilder body;
  body.input("s", {}).input("t", {}).output("next");
  body.node("Add", {"s", "t"}, {"next"});
  GraphBuilder graph;
  graph.input("s0", {}).input("xs", {-1}).output("last");
  graph.node("Scan", {"s0", "xs"}, {"last"})
      .name("here")
      .set("num_scan_inputs", 1)
      .set("body", body.graph)
      .set("scan_input_directions", Ints{7});
  CHECK(refusal_of(graph) == "m.onnx: node 'here' (Scan): attribute scan_input_directions: expected 0 (forward) or 1 (backward), found 7");
}

/// A loop as exporters write scripted ones: `for i in range(T): y.append(step(x[i]))`, T being an extent of x.
GraphBuilder counted_loop(const char* condition, const std::string& picked) {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("s", {1, 4});
  body.output("go_on").output("next").output("shown");
  body.node("Gather", {"x", "i"}, {"row"}).set("axis", 0);
  body.node("Add", {"row", "s"}, {"sum"});
  body.node("Tanh", {"sum"}, {"next"});
  body.node("Identity", {"next"}, {"shown"});
  auto handed_on = body.node(condition, {"go"}, {"go_on"});
  if (std::string(condition) == "Cast") handed_on.set("to", static_cast<int>(onnx::TensorProto::BOOL));
  GraphBuilder graph;
  graph.input("x", {-1, 1, 4}).input("s0", {1, 4}).output("last").output("ys");
  graph.initializer("true", Tensor::scalar(true)).initializer("zero", Tensor::scalar<std::int64_t>(0));
  graph.initializer("begin", list({0})).initializer("end", list({1}));
  graph.node("Shape", {"x"}, {"shape"});
  if (picked == "Gather") graph.node("Gather", {"shape", "zero"}, {"T"}).set("axis", 0);
  if (picked == "Slice") graph.node("Slice", {"shape", "begin", "end"}, {"T"});
  if (picked == "Split") graph.node("Split", {"shape"}, {"T", "one", "four"}).set("axis", 0);
  graph.node("Loop", {"T", "true", "s0"}, {"last", "ys"}).set("body", body.graph);
  return graph;
}

TEST_CASE("A loop that counts over the rows of a tensor reads them as steps: it is fused, and goes live") {
  for (const char* condition : {"Identity", "Cast"})
    for (const std::string picked : {"Gather", "Slice", "Split"}) {
      INFO(condition, " ", picked);
      const Program program = parse(counted_loop(condition, picked));
      check(program);
      for (const std::int64_t steps : {0, 1, 7}) {
        testing::Random random(5);
        const Feeds feeds{{"x", testing::random_tensor(random, {steps, 1, 4})}, {"s0", testing::random_tensor(random, {1, 4})}};
        RunOptions interpreted;
        interpreted.backend = Backend::interpreted;
        const RunResult wanted = testing::on_cpu(program, feeds, interpreted), found = testing::on_cpu(program, feeds);
        CHECK(testing::bits(found) == testing::bits(wanted));
        CHECK(found["ys"].tensor().dims() == DDim{steps, 1, 4});
        CHECK((found.fused_loops == 1 || steps == 0));
      }
      const Recurrence recurrence = make_recurrence(program);
      CHECK(recurrence.states.size() == 1);
    }
}

TEST_CASE("A loop that takes fewer or more steps than a tensor has rows gives those, or an error that names the array") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("s", {2}).output("go").output("next");
  body.node("Gather", {"x", "i"}, {"row"}).set("axis", 0);
  body.node("Add", {"row", "s"}, {"next"});
  GraphBuilder graph;
  graph.input("x", {-1, 2}).input("s0", {2}).input("n", {}, onnx::TensorProto::INT64).output("last");
  graph.initializer("true", Tensor::scalar(true));
  graph.node("Loop", {"n", "true", "s0"}, {"last"}).set("body", body.graph);
  const Program program = parse(graph);
  const auto last = [&](std::int64_t n) {
    const Feeds feeds{
        {"x", Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2})}, {"s0", Tensor::from<float>({0, 0}, {2})}, {"n", Tensor::scalar(n)}};
    return testing::on_cpu(program, feeds)["last"].tensor().to_vector<float>();
  };
  CHECK(last(-1) == std::vector<float>{0, 0});
  CHECK(last(2) == std::vector<float>{4, 6});
  CHECK(last(3) == std::vector<float>{9, 12});
  CHECK_THROWS_AS(last(4), Error);
}

TEST_CASE("An LSTM of one step inside a loop is a cell there, and one of f16 computes in f32") {
  testing::Random random(3);
  const Tensor w = testing::random_tensor(random, {1, 12, 2}), r = testing::random_tensor(random, {1, 12, 3});
  const Feeds feeds{{"x", testing::random_tensor(random, {6, 1, 2})},
                    {"h0", testing::random_tensor(random, {1, 1, 3})},
                    {"c0", testing::random_tensor(random, {1, 1, 3})}};
  std::vector<std::vector<float>> ys;
  for (const auto type : {onnx::TensorProto::FLOAT, onnx::TensorProto::FLOAT16}) {
    INFO("type ", static_cast<int>(type));
    GraphBuilder body;
    body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL);
    body.input("h", {1, 1, 3}, type).input("c", {1, 1, 3}, type).output("go").output("h2").output("c2").output("y");
    body.node("Gather", {"as_x", "i"}, {"row"}).set("axis", 0);
    body.node("Unsqueeze", {"row", "axis"}, {"rows"});
    body.node("LSTM", {"rows", "as_W", "as_R", "", "", "h", "c"}, {"", "h2", "c2"}).set("hidden_size", 3);
    body.node("Squeeze", {"h2", "axis"}, {"y"});
    GraphBuilder graph;
    graph.input("x", {-1, 1, 2}).input("h0", {1, 1, 3}).input("c0", {1, 1, 3}).initializer("W", w).initializer("R", r);
    graph.initializer("true", Tensor::scalar(true)).initializer("axis", list({0})).initializer("zero", Tensor::scalar<std::int64_t>(0));
    graph.output("hn").output("cn").output("ys");
    for (const std::string name : {"x", "h0", "c0", "W", "R"}) graph.node("Cast", {name}, {"as_" + name}).set("to", static_cast<int>(type));
    graph.node("Shape", {"x"}, {"shape"});
    graph.node("Gather", {"shape", "zero"}, {"T"}).set("axis", 0);
    graph.node("Loop", {"T", "true", "as_h0", "as_c0"}, {"hn", "cn", "as_ys"}).set("body", body.graph);
    graph.node("Cast", {"as_ys"}, {"ys"}).set("to", static_cast<int>(onnx::TensorProto::FLOAT));
    const Program program = parse(graph);
    CHECK(program.blocks().size() == 2);  // no loop in the loop
    const RunResult found = testing::on_cpu(program, feeds);
    CHECK(found["hn"].tensor().dtype() == (type == onnx::TensorProto::FLOAT ? DType::f32 : DType::f16));
    CHECK((found.fused_loops == 1 || type != onnx::TensorProto::FLOAT));
    ys.push_back(found["ys"].tensor().to_vector<float>());
  }
  REQUIRE(ys[0].size() == 18);
  for (std::size_t i = 0; i < ys[0].size(); ++i) CHECK(std::abs(ys[0][i] - ys[1][i]) < 4e-3);
}

TEST_CASE("Cells of one step inside a loop whose batch is open run fused, and refuse states of another batch") {
  for (const std::string kind : {"LSTM", "GRU", "RNN"}) {
    INFO(kind);
    const bool lstm = kind == "LSTM";
    const std::int64_t gates = lstm ? 4 : kind == "GRU" ? 3 : 1;
    testing::Random random(7);
    GraphBuilder body;
    body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("h", {-1, 3});
    if (lstm) body.input("c", {-1, 3});
    body.output("go").output("h2");
    if (lstm) body.output("c2");
    body.output("y");
    body.node("Gather", {"x", "i"}, {"row"}).set("axis", 0);
    body.node("Unsqueeze", {"row", "axis"}, {"rows"});
    body.node("Unsqueeze", {"h", "axis"}, {"hs"});
    if (lstm) body.node("Unsqueeze", {"c", "axis"}, {"cs"});
    std::vector<std::string> given{"rows", "W", "R", "", "", "hs"}, made{"", "hn"};
    if (lstm) given.push_back("cs");
    if (lstm) made.push_back("cn");
    body.node(kind, given, made).set("hidden_size", 3);
    body.node("Squeeze", {"hn", "axis"}, {"h2"});
    if (lstm) body.node("Squeeze", {"cn", "axis"}, {"c2"});
    body.node("Identity", {"h2"}, {"y"});
    GraphBuilder graph;
    graph.input("x", {-1, -1, 2}).input("h0", {-1, 3});
    if (lstm) graph.input("c0", {-1, 3});
    graph.initializer("W", testing::random_tensor(random, {1, 3 * gates, 2}))
        .initializer("R", testing::random_tensor(random, {1, 3 * gates, 3}));
    graph.initializer("true", Tensor::scalar(true)).initializer("axis", list({0})).initializer("zero", Tensor::scalar<std::int64_t>(0));
    graph.output("ys");
    graph.node("Shape", {"x"}, {"shape"});
    graph.node("Gather", {"shape", "zero"}, {"T"}).set("axis", 0);
    std::vector<std::string> carried{"T", "true", "h0"}, last{"hl"};
    if (lstm) carried.push_back("c0");
    if (lstm) last.push_back("cl");
    last.push_back("ys");
    graph.node("Loop", carried, last).set("body", body.graph);
    const Program program = parse(graph);
    const auto fed = [&](std::int64_t states) {
      Feeds feeds{{"x", testing::random_tensor(random, {5, 4, 2})}, {"h0", testing::random_tensor(random, {states, 3})}};
      if (lstm) feeds.emplace("c0", testing::random_tensor(random, {states, 3}));
      return feeds;
    };
    const Feeds feeds = fed(4);
    RunOptions interpreted;
    interpreted.backend = Backend::interpreted;
    const RunResult found = testing::on_cpu(program, feeds), wanted = testing::on_cpu(program, feeds, interpreted);
    CHECK(testing::bits(found) == testing::bits(wanted));
    CHECK(found.fused_loops == 1);
    CHECK_THROWS_AS(testing::on_cpu(program, fed(1)), ShapeError);
    CHECK_THROWS_AS(testing::on_cpu(program, fed(1), interpreted), ShapeError);
  }
}

TEST_CASE("A list that a loop grows stands beside outputs that the node leaves out") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).output("go");
  body.graph.add_input()->set_name("list");
  body.graph.add_output()->set_name("longer");
  body.output("minus");
  body.node("Gather", {"x", "i"}, {"row"}).set("axis", 0);
  body.node("Neg", {"row"}, {"minus"});
  body.node("SequenceInsert", {"list", "row"}, {"longer"});
  GraphBuilder graph;
  graph.input("x", {-1, 2}).input("n", {}, onnx::TensorProto::INT64).output("y").initializer("true", Tensor::scalar(true));
  graph.node("SequenceEmpty", {}, {"empty"});
  graph.node("Loop", {"n", "true", "empty"}, {"ys"}).set("body", body.graph);
  graph.node("ConcatFromSequence", {"ys"}, {"y"}).set("axis", 0).set("new_axis", 1);
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  const RunResult found = testing::on_cpu(parse(graph), {{"x", x}, {"n", Tensor::scalar<std::int64_t>(2)}});
  CHECK(found["y"].tensor().to_vector<float>() == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("A loop over an extent that the tensor of its steps has stretched makes as many iterations as it says") {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("s", {2, 3}).output("go").output("next");
  body.node("Gather", {"wide", "i"}, {"row"}).set("axis", 1);
  body.node("Add", {"row", "s"}, {"next"});
  GraphBuilder graph;
  graph.input("x", {2, -1, 3}).output("last").initializer("true", Tensor::scalar(true)).initializer("w", ones({5, 1}));
  graph.initializer("begin", list({1})).initializer("end", list({2})).initializer("s0", make_darray({2, 3}, 0.0f));
  graph.node("Add", {"x", "w"}, {"wide"});
  graph.node("Shape", {"x"}, {"shape"});
  graph.node("Slice", {"shape", "begin", "end"}, {"n"});
  graph.node("Loop", {"n", "true", "s0"}, {"last"}).set("body", body.graph);
  const RunResult found = testing::on_cpu(parse(graph), {{"x", ones({2, 1, 3})}});
  CHECK(found["last"].tensor().to_vector<float>() == std::vector<float>(6, 2));  // one iteration, of five steps
}

TEST_CASE("A convolution over a small image of known extents has the bits of dot products, however many images there are") {
  Random random(5);
  GraphBuilder graph;
  graph.input("x", {-1, 24, 6, 7}).output("y").initializer("w", random_tensor(random, {32, 24, 3, 3}));
  graph.node("Conv", {"x", "w"}, {"y"}).set("pads", Ints{1, 1, 1, 1});
  const Program program = parse(graph);
  Program exact = program;
  for (Op& op : exact.block(0).ops)
    if (op.type == "conv1d") op.attributes.set("winograd", false);
  for (const std::int64_t images : {1, 5}) {
    const Tensor x = random_tensor(random, {images, 24, 6, 7});
    CHECK(same_bits(testing::on_cpu(program, {{"x", x}})["y"].tensor(), testing::on_cpu(exact, {{"x", x}})["y"].tensor()));
  }
}

TEST_CASE("Rows of a convolution that looks ahead along both axes may be made in fours, those of a causal one and of a loop may not") {
  Random random(2);
  const Tensor w = random_tensor(random, {8, 8, 3, 3}), x = random_tensor(random, {2, 8, 9, 20});
  const auto convolution = [&](const Ints& pads, const Ints& dims) {
    GraphBuilder graph;
    graph.input("x", dims).output("y").initializer("w", w);
    graph.node("Conv", {"x", "w"}, {"y"}).set("pads", pads);
    return parse(graph);
  };
  const Program both = convolution({1, 1, 1, 1}, {-1, 8, 9, -1});
  CHECK(find_op(both, "conv1d").attributes.get_or("winograd", false));
  Program exact = both;
  for (Op& op : exact.block(0).ops)
    if (op.type == "conv1d") op.attributes.set("winograd", false);
  const Tensor found = testing::on_cpu(both, {{"x", x}})["y"].tensor().copy_to(CpuPlace{});
  const Tensor wanted = testing::on_cpu(exact, {{"x", x}})["y"].tensor().copy_to(CpuPlace{});
  CHECK(!same_bits(found, wanted));
  REQUIRE(found.dims() == wanted.dims());
  for (std::int64_t i = 0; i < found.elements(); ++i)
    CHECK(found.data<float>()[i] == doctest::Approx(wanted.data<float>()[i]).epsilon(1e-4));
  CHECK(!find_op(convolution({1, 2, 1, 0}, {-1, 8, 9, -1}), "conv1d").attributes.get_or("winograd", false));
  CHECK(!find_op(convolution({2, 1, 0, 1}, {-1, 8, -1, 20}), "conv1d").attributes.get_or("winograd", false));
  // No sequence goes along an axis of known extent.
  CHECK(find_op(convolution({2, 1, 0, 1}, {-1, 8, 9, -1}), "conv1d").attributes.get_or("winograd", false));
  CHECK(find_op(convolution({2, 2, 0, 0}, {-1, 8, 9, 20}), "conv1d").attributes.get_or("winograd", false));

  GraphBuilder windows;  // what looks ahead of the last row is in the results of all windows behind
  windows.input("x", {-1, 8, -1, -1}).output("y").initializer("w", w);
  windows.node("Conv", {"x", "w"}, {"c"}).set("pads", Ints{1, 1, 1, 1});
  windows.node("MaxPool", {"c"}, {"m"}).set("kernel_shape", Ints{3, 3}).set("strides", Ints{2, 2});
  windows.node("Conv", {"m", "w"}, {"y"});
  CHECK(find_op(parse(windows), "conv1d").attributes.get_or("winograd", false));

  const auto before = [&](const Ints& pads) {  // a detector's maps grow: no place is left out unless pads take it off
    GraphBuilder graph;
    graph.input("x", {-1, 8, -1, -1}).output("y").initializer("w", w).initializer("v", random_tensor(random, {8, 8, 2, 2}));
    graph.initializer("scales", Tensor::from<float>({1, 1, 2, 2}));
    graph.node("Conv", {"x", "w"}, {"c"}).set("pads", Ints{1, 1, 1, 1});
    graph.node("Resize", {"c", "", "scales"}, {"r"}).set("mode", "linear");
    graph.node("ConvTranspose", {"r", "v"}, {"y"}).set("strides", Ints{2, 2}).set("pads", pads);
    return find_op(parse(graph), "conv1d").attributes.get_or("winograd", false);
  };
  CHECK(before({0, 0, 0, 0}));
  CHECK(!before({0, 0, 1, 1}));

  GraphBuilder cut;
  cut.input("x", {-1, 8, 9, -1}).output("y").initializer("w", w).initializer("zero", list({0})).initializer("two", list({2}));
  cut.initializer("three", list({3})).initializer("end", list({-2}));
  cut.node("Conv", {"x", "w"}, {"c"}).set("pads", Ints{1, 2, 1, 2});
  cut.node("Relu", {"c"}, {"r"});
  cut.node("Slice", {"r", "zero", "end", "three"}, {"y"});
  CHECK(!find_op(parse(cut), "conv1d").attributes.get_or("winograd", false));

  // Pieces of channels leave no place out; behind a transpose axis 1 may be one that a sequence goes along.
  const auto in_pieces = [&](bool turned, std::int64_t axis, bool split) {
    GraphBuilder pieces;
    pieces.input("x", {-1, 8, -1, -1}).output("y").initializer("w", w).initializer("axis", list({axis})).initializer("n", list({4, 4}));
    pieces.initializer("zero", list({0})).initializer("four", list({4}));
    pieces.node("Conv", {"x", "w"}, {"c"}).set("pads", Ints{1, 1, 1, 1});
    pieces.node("Sigmoid", {"c"}, {"s"});
    pieces.node("Mul", {"c", "s"}, {"m"});
    if (turned) pieces.node("Transpose", {"m"}, {"t"}).set("perm", Ints{0, 2, 1, 3});
    if (split)
      pieces.node("Split", {turned ? "t" : "m", "n"}, {"y", "rest"}).set("axis", static_cast<int>(axis));
    else
      pieces.node("Slice", {turned ? "t" : "m", "zero", "four", "axis"}, {"y"});
    return find_op(parse(pieces), "conv1d").attributes.get_or("winograd", false);
  };
  for (const bool split : {false, true}) {
    CHECK(in_pieces(false, 1, split));
    CHECK(!in_pieces(false, 2, split));
    CHECK(!in_pieces(true, 1, split));
  }

  GraphBuilder body;
  body.input("s", {1, 8, 9, 9}).input("row", {1, 8, 9, 9}).output("next").output("made");
  body.node("Conv", {"row", "w"}, {"c"}).set("pads", Ints{1, 1, 1, 1});
  body.node("Add", {"c", "s"}, {"next"});
  body.node("Identity", {"next"}, {"made"});
  GraphBuilder graph;
  graph.input("s0", {1, 8, 9, 9}).input("rows", {-1, 1, 8, 9, 9}).output("last").output("all").initializer("w", w);
  graph.node("Scan", {"s0", "rows"}, {"last", "all"}).set("body", body.graph).set("num_scan_inputs", 1);
  CHECK(!find_op(parse(graph), "conv1d", 1).attributes.get_or("winograd", false));
}

TEST_CASE("A transposed convolution gives what its sums say, whatever its pads cut off and however many taps a phase has") {
  for (const std::uint64_t seed : testing::seeds(60)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t groups = random.between(1, 3), in = random.between(1, 3), units = random.between(1, 6),
                       length = random.between(1, 40);
    const std::int64_t kernel = random.between(1, 7), stride = random.between(1, 4), before = random.between(0, kernel - 1);
    const std::int64_t after = random.between(0, kernel - 1), more = random.between(0, stride - 1);
    const std::int64_t out = (length - 1) * stride + kernel - before - after + more;
    if (out < 1) continue;
    const Tensor x = random_tensor(random, {1, groups * in, length}), w = random_tensor(random, {groups * in, units, kernel});
    const Tensor bias = random_tensor(random, {groups * units});
    GraphBuilder graph;
    graph.input("x", {-1, groups * in, -1}).output("y").initializer("w", w).initializer("b", bias);
    graph.node("ConvTranspose", {"x", "w", "b"}, {"y"})
        .set("pads", Ints{before, after})
        .set("strides", Ints{stride})
        .set("group", static_cast<int>(groups))
        .set("output_padding", Ints{more});
    std::vector<double> wanted(static_cast<std::size_t>(groups * units * out));
    for (std::int64_t unit = 0; unit < groups * units; ++unit)
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = bias.data<float>()[unit];
        for (std::int64_t c = unit / units * in; c < (unit / units + 1) * in; ++c)
          for (std::int64_t i = 0; i < length; ++i)
            if (const std::int64_t tap = o + before - i * stride; tap >= 0 && tap < kernel)
              sum += double{x.data<float>()[c * length + i]} * w.data<float>()[(c * units + unit % units) * kernel + tap];
        wanted[static_cast<std::size_t>(unit * out + o)] = sum;
      }
    const Tensor found = testing::on_cpu(parse(graph), {{"x", x}})["y"].tensor().copy_to(CpuPlace{});
    REQUIRE(found.dims() == DDim{1, groups * units, out});
    for (std::int64_t i = 0; i < found.elements(); ++i)
      CHECK(found.data<float>()[i] == doctest::Approx(wanted[static_cast<std::size_t>(i)]).epsilon(1e-5));
  }
}

TEST_CASE("A transposed convolution by weights that ops make of known values has the phases of one by weights of the file") {
  Random random(3);
  const Tensor x = random_tensor(random, {1, 4, 9});
  std::vector<std::int8_t> bytes;
  for (int i = 0; i < 4 * 3 * 4; ++i) bytes.push_back(static_cast<std::int8_t>(random.between(-100, 100)));
  std::vector<float> floats;
  for (const std::int8_t byte : bytes) floats.push_back(static_cast<float>(byte) * 0.25f);
  const auto made = [&](bool dequantized) {
    GraphBuilder graph;
    graph.input("x", {1, 4, 9}).output("y");
    if (dequantized) {
      graph.initializer("bytes", Tensor::from(bytes, DDim{4, 3, 4})).initializer("scale", Tensor::from<float>({0.25f}).reshape(DDim{}));
      graph.node("DequantizeLinear", {"bytes", "scale"}, {"w"});
    } else {
      graph.initializer("w", Tensor::from(floats, DDim{4, 3, 4}));
    }
    graph.node("ConvTranspose", {"x", "w"}, {"y"}).set("strides", Ints{2}).set("pads", Ints{1, 1});
    return parse(graph);
  };
  const Program program = made(true);
  CHECK(std::ranges::count_if(program.block(0).ops, [&](const Op& op) {
          return op.type == "conv1d" && (*program.var(op.outputs[0]).type.shape)[1] == 3 * 2;
        }) == 1);
  CHECK(same_bits(testing::on_cpu(program, {{"x", x}})["y"].tensor().copy_to(CpuPlace{}),
                  testing::on_cpu(made(false), {{"x", x}})["y"].tensor().copy_to(CpuPlace{})));
}

TEST_CASE("Resize leaves axes of scale 1 alone, where infinity would meet a weight of 0") {
  GraphBuilder graph;
  graph.input("x", {1, 2, 1, 3}).output("y").initializer("scales", Tensor::from<float>({1, 1, 1, 2}));
  graph.node("Resize", {"x", "", "scales"}, {"y"}).set("mode", "linear");
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from<float>({infinity, 0, 4, 1, 2, 3}, {1, 2, 1, 3});
  CHECK(testing::on_cpu(parse(graph), {{"x", x}})["y"].tensor().to_vector<float>() ==
        std::vector<float>{infinity, infinity, infinity, 1, 3, 4, 1, 1.25, 1.75, 2.25, 2.75, 3});
}

TEST_CASE("An average over windows has one quotient behind the sums of all axes, also where windows at edges have fewer elements") {
  const auto quotients = [](const Ints& pads) {
    GraphBuilder graph;
    graph.input("x", {1, 2, -1, 9}).output("y");
    graph.node("AveragePool", {"x"}, {"y"}).set("kernel_shape", Ints{3, 3}).set("pads", pads);
    const Program program = parse(graph);
    return std::count_if(program.block(0).ops.begin(), program.block(0).ops.end(), [](const Op& op) { return op.type == "div"; });
  };
  CHECK(quotients({0, 0, 0, 0}) == 1);
  CHECK(quotients({0, 1, 0, 0}) == 1);
  CHECK(quotients({1, 1, 1, 1}) == 1);
}

TEST_CASE("A convolution whose last places a slice cuts off is one with less padding behind, and goes live") {
  for (const bool by_extent : {false, true}) {
    INFO("by extent ", by_extent);
    GraphBuilder graph;
    graph.input("x", {1, 2, -1}).output("y").initializer("w", ones({3, 2, 3})).initializer("zero", list({0})).initializer("two", list({2}));
    graph.initializer("end", list({-4})).initializer("at", Tensor::scalar<std::int64_t>(2));
    graph.node("Conv", {"x", "w"}, {"c"}).set("pads", Ints{4, 4}).set("dilations", Ints{2});
    graph.node("Shape", {"x"}, {"shape"});
    graph.node("Slice", {"shape", "two", "behind"}, {"T"});
    graph.initializer("behind", list({3}));
    graph.node("Slice", {"c", "zero", by_extent ? "T" : "end", "two"}, {"y"});
    const Program program = parse(graph);
    const std::vector<std::string> ops = ops_of(program);
    CHECK(std::count(ops.begin(), ops.end(), "conv1d") == 1);
    CHECK(std::count(ops.begin(), ops.end(), "slice") == 0);
    const Op& conv = find_op(program, "conv1d");
    CHECK(conv.attributes.get<Ints>("pads") == Ints{4, 0});
    CHECK_NOTHROW(make_recurrence(program));
  }
}

/// s doubles while a condition lets it: one of the loop's own, behind some copies, or a value of outside or of the body.
GraphBuilder doubling(const std::string& go_on, int copies = 0) {
  GraphBuilder body;
  body.input("i", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("s", {2}).output("go_on").output("next");
  body.initializer("never", Tensor::scalar(false)).initializer("always", Tensor::scalar(true)).output("each");
  std::string from = go_on;
  for (int i = 0; i < copies; ++i) body.node("Identity", {std::exchange(from, "copy" + std::to_string(i))}, {"copy" + std::to_string(i)});
  body.node("Identity", {from}, {"go_on"});
  body.node("Add", {"s", "s"}, {"next"});
  body.node("Identity", {"next"}, {"each"});
  GraphBuilder graph;
  graph.input("outer", {}, onnx::TensorProto::BOOL).input("s0", {2}).output("last").output("all");
  graph.node("Loop", {"", "go0", "s0"}, {"last", "all"}).name("spin").set("body", body.graph);
  return graph;
}

TEST_CASE("A Loop without a trip count whose condition stays true can never end and is refused") {
  const auto refused = [](GraphBuilder graph) {
    const std::string said = refusal_of(graph.initializer("go0", Tensor::scalar(true)));
    CAPTURE(said);
    CHECK(said.find("node 'spin' (Loop)") != std::string::npos);
    CHECK(said.find("the loop can never end") != std::string::npos);
  };
  for (const int copies : {0, 1, 3}) refused(doubling("go", copies));
  refused(doubling("always"));
}

TEST_CASE("A Loop whose condition no iteration changes runs as often as it lets: never, once, or on and on") {
  const auto trips = [](GraphBuilder graph, std::optional<bool> known, bool go, bool outer = false) {
    if (known)
      graph.initializer("go0", Tensor::scalar(*known));
    else
      graph.input("go0", {}, onnx::TensorProto::BOOL);
    Feeds feeds{{"outer", Tensor::scalar(outer)}, {"s0", Tensor::from<float>({1, 2})}};
    if (!known) feeds.emplace("go0", Tensor::scalar(go));
    const RunResult result = testing::run_fifo(run(parse(graph), feeds));
    const std::int64_t count = result["all"].tensor().dim(0);
    const auto times = static_cast<float>(1 << count);
    CHECK(result["last"].tensor().to_vector<float>() == std::vector<float>{times, 2 * times});
    return count;
  };
  CHECK(trips(doubling("never"), true, true) == 1);
  CHECK(trips(doubling("never", 2), std::nullopt, true) == 1);
  CHECK(trips(doubling("never"), std::nullopt, false) == 0);
  CHECK(trips(doubling("outer"), true, true) == 1);
  CHECK(trips(doubling("outer"), std::nullopt, false, true) == 0);
  CHECK(trips(doubling("go"), false, false) == 0);
  CHECK(trips(doubling("go", 1), std::nullopt, false) == 0);
}

TEST_CASE("LpNormalization of a vector of zeros is zero") {
  for (const int p : {1, 2}) {
    GraphBuilder graph;
    graph.input("x", {2, 2}).output("y");
    graph.node("LpNormalization", {"x"}, {"y"}).set("p", p).set("axis", -1);
    const Tensor x = Tensor::from<float>(std::vector<float>{0, 0, 3, 0}, {2, 2});
    const RunResult result = testing::run_fifo(run(Executable(parse(graph)), {{"x", x}}));
    CHECK(result["y"].tensor().to_vector<float>() == std::vector<float>{0, 0, 1, 0});
  }
}

TEST_CASE("An attribute that says the default of its op is no reason to refuse a node, and another value of it is refused by name") {
  const auto norm = [](int stash_type) {
    GraphBuilder graph;
    graph.input("x", {2, 3}).initializer("scale", ones({3})).output("y");
    graph.node("LayerNormalization", {"x", "scale"}, {"y"}).name("here").set("stash_type", stash_type);
    return graph;
  };
  CHECK(ops_of(parse(norm(1))) == std::vector<std::string>{"layer_norm"});
  CHECK(refusal_of(norm(10)) == "m.onnx: node 'here' (LayerNormalization): attribute stash_type: expected 1, found 10");
  const auto count = [](int stash_type) {
    GraphBuilder graph;
    graph.input("n", {}).initializer("zero", Tensor::scalar(0.0f)).initializer("one", Tensor::scalar(1.0f)).output("y");
    graph.node("Range", {"zero", "n", "one"}, {"y"}).name("here").set("stash_type", stash_type);
    return graph;
  };
  CHECK(refusal_of(count(1), 27) == "");
  CHECK(refusal_of(count(11), 27).find("node 'here' (Range): attribute stash_type: expected 1, found 11") != std::string::npos);
}

TEST_CASE("DequantizeLinear gives the type that it names, or that of the scale") {
  const auto type_of = [](int output_dtype) {
    GraphBuilder graph;
    graph.input("x", {3}, onnx::TensorProto::UINT8).initializer("scale", Tensor::scalar(0.5f)).output("y");
    graph.node("DequantizeLinear", {"x", "scale"}, {"y"}).set("output_dtype", output_dtype);
    const Program program = parse(graph, 23);
    return program.var(program.outputs()[0].var).type.to_string();
  };
  CHECK(type_of(0) == "f32[3]");
  CHECK(type_of(onnx::TensorProto::FLOAT) == "f32[3]");
  CHECK(type_of(onnx::TensorProto::FLOAT16) == "f16[3]");
}

TEST_CASE("A Resize of known extents by known scales or sizes has known extents, and the bits of one whose extents a run knows") {
  Random random(6);
  const Tensor x = random_tensor(random, {2, 3, 5, 7});
  struct Case {
    const char *mode, *coordinates;
    std::vector<float> scales;
    Ints sizes;
  };
  const Case cases[] = {{"nearest", "asymmetric", {1, 1, 2, 1.7f}, {}},
                        {"nearest", "half_pixel", {}, {2, 3, 9, 14}},
                        {"linear", "half_pixel", {1, 1, 1.4f, 2}, {}},
                        {"linear", "align_corners", {}, {2, 3, 3, 20}},
                        {"linear", "half_pixel_symmetric", {1, 1, 0.6f, 1.3f}, {}},
                        {"cubic", "pytorch_half_pixel", {1, 1, 0.7f, 2.5f}, {}},
                        {"nearest", "half_pixel_symmetric", {1, 1, 2.3f, 0.2f}, {}},
                        {"linear", "asymmetric", {}, {2, 3, 5, 1}}};
  for (const Case& each : cases) {
    INFO(each.mode, " ", each.coordinates);
    const auto program = [&](const Ints& dims) {
      GraphBuilder graph;
      graph.input("x", dims).output("y");
      each.sizes.empty() ? graph.initializer("s", Tensor::from(each.scales, DDim{4}))
                         : graph.initializer("s", Tensor::from(each.sizes, DDim{4}));
      graph.node("Resize", {"x", "", each.sizes.empty() ? "s" : "", each.sizes.empty() ? "" : "s"}, {"y"})
          .set("mode", each.mode)
          .set("coordinate_transformation_mode", each.coordinates);
      return parse(graph);
    };
    const Program known = program({-1, 3, 5, 7});
    const Tensor made = testing::on_cpu(known, {{"x", x}})["y"].tensor(),
                 wanted = testing::on_cpu(program({-1, 3, -1, -1}), {{"x", x}})["y"].tensor();
    CHECK(same_bits(made, wanted));
    const DDim& dims = *known.var(known.outputs()[0].var).type.shape;
    CHECK(dims[2] == made.dim(2));
    CHECK(dims[3] == made.dim(3));
  }
}

TEST_CASE("A Resize that keeps the ratio of its axes takes one scale for all, whether extents are known or not") {
  Random random(7);
  const Tensor x = random_tensor(random, {1, 2, 5, 7});
  for (const char* const mode : {"nearest", "linear"})
    for (const auto& [policy, wanted] : {std::pair("not_larger", DDim{1, 2, 8, 11}), std::pair("not_smaller", DDim{1, 2, 9, 13})}) {
      INFO(mode, " ", policy);
      const auto made = [&, policy = policy](const Ints& dims) {
        GraphBuilder graph;
        graph.input("x", dims).initializer("s", Tensor::from<std::int64_t>({9, 11})).output("y");
        graph.node("Resize", {"x", "", "", "s"}, {"y"}).set("mode", mode).set("axes", Ints{2, 3}).set("keep_aspect_ratio_policy", policy);
        return testing::on_cpu(parse(graph), {{"x", x}})["y"].tensor();
      };
      CHECK(made({-1, 2, 5, 7}).dims() == wanted);
      CHECK(same_bits(made({-1, 2, 5, 7}), made({-1, 2, -1, -1})));
    }
}

TEST_CASE("Scales of a Resize that make no picture are refused") {
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    CAPTURE(scale);
    GraphBuilder graph;
    graph.input("x", {1, 1, 4}).initializer("scales", Tensor::from<float>({1, 1, scale})).output("y");
    graph.node("Resize", {"x", "", "scales"}, {"y"}).name("here");
    CHECK(refusal_of(graph).find("node 'here' (Resize): expected scales that are finite and above 0, found") != std::string::npos);
    GraphBuilder old;
    old.input("x", {1, 1, 4}).initializer("scales", Tensor::from<float>({1, 1, scale})).output("y");
    old.node("Upsample", {"x", "scales"}, {"y"});
    CHECK(refusal_of(old, 9).find("expected scales that are finite and above 0, found") != std::string::npos);
  }
}

TEST_CASE("A length of Resize is the product of f32, cut to a whole number") {
  GraphBuilder graph;
  graph.input("x", {1, 1, -1}).initializer("scales", Tensor::from<float>({1, 1, 1.4f})).output("y");
  graph.node("Resize", {"x", "", "scales"}, {"y"}).set("coordinate_transformation_mode", "align_corners").set("nearest_mode", "ceil");
  const Program program = parse(graph);
  const auto resized = [&](std::int64_t length) {
    std::vector<float> x;
    for (std::int64_t i = 0; i < length; ++i) x.push_back(static_cast<float>(i));
    return testing::run_fifo(run(program, Feeds{{"x", Tensor::from(x, DDim{1, 1, length})}}))["y"].tensor().to_vector<float>();
  };
  CHECK(resized(5) == std::vector<float>{0, 1, 2, 2, 3, 4, 4});
  CHECK(resized(4).size() == 5);
}

/// h0 [B, 5] and x [T, B, 5] → the last state and three outputs, along other axes: [B, T, 5] of the state and the row, [T, B, 4] of a product, and
/// [B, T] of the row alone, which may go from the last step to the first.
GraphBuilder scanned_outputs(bool backwards) {
  testing::Random random(3);
  GraphBuilder body;
  body.input("h", {-1, 5}).input("row", {-1, 5}).output("next").output("seen").output("made").output("most");
  body.node("Add", {"h", "row"}, {"sum"});
  body.node("Tanh", {"sum"}, {"next"});
  body.node("Mul", {"sum", "next"}, {"seen"});
  body.node("MatMul", {"next", "w"}, {"made"});
  body.node("ReduceMax", {"row"}, {"most"}).set("axes", Ints{-1}).set("keepdims", 0);
  GraphBuilder graph;
  graph.input("h0", {-1, 5}).input("x", {-1, -1, 5}).output("last").output("y").output("z").output("v");
  graph.initializer("w", testing::random_tensor(random, {5, 4}));
  for (const int input : {0, 1}) {
    auto& shape = *graph.graph.mutable_input(input)->mutable_type()->mutable_tensor_type()->mutable_shape();
    shape.mutable_dim(0)->set_dim_param(input == 0 ? "batch" : "time");
    if (input == 1) shape.mutable_dim(1)->set_dim_param("batch");
  }
  graph.node("Scan", {"h0", "x"}, {"last", "y", "z", "v"})
      .set("body", body.graph)
      .set("num_scan_inputs", 1)
      .set("scan_output_axes", Ints{1, 0, -1})
      .set("scan_output_directions", Ints{0, 0, backwards ? 1 : 0});
  return graph;
}

TEST_CASE("A Scan of no steps gives outputs of the extents that its states and inputs say") {
  const Program program = parse(scanned_outputs(true));
  for (const auto& [states, rows] : {std::pair<std::int64_t, std::int64_t>{3, 3}, {1, 3}, {3, 1}, {1, 1}, {0, 0}, {0, 1}, {2, 2}}) {
    for (const std::int64_t steps : {0, 1, 4}) {
      INFO(states, " states, ", rows, " rows, ", steps, " steps");
      testing::Random random(5);
      const Feeds feeds{{"h0", testing::random_tensor(random, {states, 5})}, {"x", testing::random_tensor(random, {steps, rows, 5})}};
      const std::int64_t batch = states == 1 ? rows : states;
      RunOptions interpreted;
      interpreted.backend = Backend::interpreted;
      const RunResult wanted = testing::on_cpu(program, feeds, interpreted), found = testing::on_cpu(program, feeds);
      CHECK(testing::bits(found) == testing::bits(wanted));
      CHECK(found["last"].tensor().dims() == DDim{steps == 0 ? states : batch, 5});
      CHECK(found["y"].tensor().dims() == DDim{batch, steps, 5});
      CHECK(found["z"].tensor().dims() == DDim{steps, batch, 4});
      CHECK(found["v"].tensor().dims() == DDim{rows, steps});
      if (states == rows && rows > 0 && steps > 0) CHECK(found.fused_loops == 1);
    }
  }
  const Recurrence recurrence = make_recurrence(parse(scanned_outputs(false)));
  CHECK(recurrence.extent == "time");
  CHECK(recurrence.states.size() == 1);
}

TEST_CASE("A Scan of opset 8 over sequences of no steps keeps the other extents of its rows") {
  GraphBuilder body;
  body.input("s", {-1, 2}).input("t", {-1, 2}).output("next").output("each");
  body.node("Add", {"s", "t"}, {"next"});
  body.node("Identity", {"next"}, {"each"});
  GraphBuilder graph;
  graph.input("s0", {-1, -1, 2}).input("xs", {-1, -1, -1, 2}).output("last").output("all");
  graph.node("Scan", {"", "s0", "xs"}, {"last", "all"}).set("num_scan_inputs", 1).set("body", body.graph);
  const Program program = parse(graph, 8);
  for (const std::int64_t steps : {0, 3}) {
    const RunResult found = testing::on_cpu(program, {{"s0", ones({4, 3, 2})}, {"xs", ones({4, steps, 3, 2})}});
    CHECK(found["last"].tensor().dims() == DDim{4, 3, 2});
    CHECK(found["all"].tensor().dims() == DDim{4, steps, 3, 2});
  }
}

TEST_CASE("States of a Scan of opset 8 that have more rows than its batch are refused") {
  GraphBuilder body;
  body.input("s", {2}).input("t", {2}).output("next").output("each");
  body.node("Add", {"s", "t"}, {"next"});
  body.node("Identity", {"next"}, {"each"});
  GraphBuilder graph;
  graph.input("s0", {3, 2}).input("xs", {1, 4, 2}).output("last").output("all");
  graph.node("Scan", {"", "s0", "xs"}, {"last", "all"}).name("here").set("num_scan_inputs", 1).set("body", body.graph);
  CHECK(refusal_of(graph, 8) == "m.onnx: node 'here' (Scan): input 'xs': expected the batch of input 's0', 3, found 1");
}

TEST_CASE("Ops of ONNX Runtime's quantizer and optimiser are read: sums of bytes, a convolution with its activation") {
  GraphBuilder graph;
  graph.input("x", {3}, onnx::TensorProto::UINT8).initializer("half", Tensor::scalar(0.5f)).initializer("two", Tensor::scalar(2.0f));
  graph.input("z", {1, 1, 3}).initializer("w", ones({1, 1, 1})).output("y").output("full").output("c");
  graph.node("QLinearAdd", {"x", "half", "", "x", "half", "", "two"}, {"y"}).domain("com.microsoft");
  graph.node("QLinearAdd", {"x", "half", "", "x", "half", "", "half"}, {"full"}).domain("com.microsoft");
  graph.node("FusedConv", {"z", "w", "", "z"}, {"c"}).domain("com.microsoft").set("activation", "Relu");
  const Feeds feeds{{"x", Tensor::from<std::uint8_t>({3, 4, 250})}, {"z", Tensor::from<float>(std::vector<float>{-1, 2, 3}, {1, 1, 3})}};
  const RunResult result = testing::run_fifo(run(Executable(parse(graph)), feeds));
  CHECK(result["y"].tensor().to_vector<std::uint8_t>() == std::vector<std::uint8_t>{2, 2, 125});
  CHECK(result["full"].tensor().to_vector<std::uint8_t>() == std::vector<std::uint8_t>{6, 8, 255});
  CHECK(result["c"].tensor().to_vector<float>() == std::vector<float>{0, 4, 6});
  graph.graph.mutable_node(2)->mutable_attribute(0)->set_s("Clip");
  CHECK(refusal_of(graph).find("attribute activation_params: expected 2, found 0") != std::string::npos);
}

TEST_CASE("Ops of ONNX Runtime's optimiser are read: SiLU, products of transposed factors, norms of sums") {
  GraphBuilder graph;
  graph.input("a", {2, 1, 2})
      .input("b", {2, 2})
      .initializer("gamma", ones({2}))
      .output("silu")
      .output("product")
      .output("norm")
      .output("sum");
  graph.node("QuickGelu", {"b"}, {"silu"}).domain("com.microsoft").set("alpha", 0.0f);
  graph.node("FusedMatMul", {"a", "b"}, {"product"}).domain("com.microsoft").set("alpha", 2.0f).set("transBatchA", 1).set("transB", 1);
  graph.node("SkipSimplifiedLayerNormalization", {"b", "b", "gamma"}, {"norm", "", "", "sum"}).domain("com.microsoft").set("epsilon", 0.0f);
  const Feeds feeds{{"a", Tensor::from<float>(std::vector<float>{1, 0, 0, 1}, {2, 1, 2})},
                    {"b", Tensor::from<float>(std::vector<float>{3, 3, -2, 2}, {2, 2})}};
  const RunResult result = testing::run_fifo(run(Executable(parse(graph)), feeds));
  CHECK(result["silu"].tensor().to_vector<float>() == std::vector<float>{1.5, 1.5, -1, 1});
  // Axis 0 of a becomes that of rows: [1, 2, 2].
  CHECK(result["product"].tensor().dims() == DDim{1, 2, 2});
  CHECK(result["product"].tensor().to_vector<float>() == std::vector<float>{6, -4, 6, 4});
  CHECK(result["norm"].tensor().to_vector<float>() == std::vector<float>{1, 1, -1, 1});
  CHECK(result["sum"].tensor().to_vector<float>() == std::vector<float>{6, 6, -4, 4});
}

TEST_CASE("What ops of ONNX Runtime cannot be imported with is refused by name") {
  const auto refused = [](const char* op, std::vector<std::string> inputs, auto&& set, const char* text) {
    CAPTURE(op);
    GraphBuilder graph;
    graph.input("x", {2, 2}).input("u", {2, 2}, onnx::TensorProto::UINT8).initializer("s", Tensor::scalar(1.0f)).output("y");
    set(graph.node(op, std::move(inputs), {"y"}).domain("com.microsoft").name("here"));
    CHECK(refusal_of(graph).find(text) != std::string::npos);
  };
  refused(
      "FusedGemm", {"x", "x"}, [](auto&& node) { node.set("activation", "Swish"); },
      "node 'here' (FusedGemm): attribute activation: expected an activation of ONNX that ONNX Runtime fuses, found 'Swish'");
  refused(
      "FusedGemm", {"x", "x"}, [](auto&& node) { node.set("activation", "Relu").set("activation_alpha", 0.5f); },
      "attribute 'activation_alpha': FusedGemm is imported without it");
  refused("FusedMatMul", {"x", "x"}, [](auto&& node) { node.set("transA", 2); }, "attribute transA: expected 0 or 1, found 2");
  refused("QLinearSoftmax", {"u", "s", "", "s"}, [](auto&&) {}, "attribute opset: expected that of a Softmax, found 0");
  refused("QLinearSoftmax", {"x", "s", "", "s"}, [](auto&& node) { node.set("opset", 13); }, "expected u8 or i8, found f32");
  refused("QLinearConcat", {"s", "", "u", "s"}, [](auto&& node) { node.set("axis", 0); }, "three inputs for each tensor, found 4 inputs");
  refused("QLinearConcat", {"s", "", "u", "s", ""}, [](auto&&) {}, "attribute axis: expected one, found none");
}

TEST_CASE("Sums of ConvInteger are exact: in f32 where no input of bytes can take them beyond 2^24, else in f64") {
  constexpr std::int64_t channels = 100, k = 3;
  for (const std::uint8_t weight : {std::uint8_t{200}, std::uint8_t{255}}) {
    CAPTURE(static_cast<int>(weight));
    onnx::TensorProto weights;
    weights.set_name("w");
    weights.set_data_type(onnx::TensorProto::UINT8);
    for (const std::int64_t extent : {std::int64_t{1}, channels, k}) weights.add_dims(extent);
    std::string raw(channels * k, static_cast<char>(weight));
    raw.back() = 1;
    weights.set_raw_data(raw);
    GraphBuilder graph;
    graph.input("x", {1, channels, k}, onnx::TensorProto::UINT8).output("y");
    *graph.graph.add_initializer() = weights;
    graph.node("ConvInteger", {"x", "w"}, {"y"});
    const Program program = parse(graph);
    CHECK((print(program).find("f64") == std::string::npos) == (weight == 200));
    const Feeds feeds{{"x", Tensor::from<std::uint8_t>(std::vector<std::uint8_t>(channels * k, 255), DDim{1, channels, k})}};
    const std::int32_t sum = 255 * (weight * (channels * k - 1) + 1);
    CHECK(testing::on_cpu(program, feeds)["y"].tensor().to_vector<std::int32_t>() == std::vector<std::int32_t>{sum});
  }
}

TEST_CASE("ConvInteger with windows of three by three over many channels gives the sums of its products") {
  constexpr std::int64_t channels = 28, units = 32, side = 28;
  testing::Random random(7);
  const auto bytes = [&](std::int64_t count) {
    std::vector<std::uint8_t> made(static_cast<std::size_t>(count));
    for (std::uint8_t& byte : made) byte = static_cast<std::uint8_t>(random.between(0, 255));
    return made;
  };
  const std::vector<std::uint8_t> w = bytes(units * channels * 9), x = bytes(channels * side * side);
  onnx::TensorProto weights;
  weights.set_name("w");
  weights.set_data_type(onnx::TensorProto::UINT8);
  for (const std::int64_t extent : {units, channels, std::int64_t{3}, std::int64_t{3}}) weights.add_dims(extent);
  weights.set_raw_data(std::string(w.begin(), w.end()));
  GraphBuilder graph;
  graph.input("x", {1, channels, side, side}, onnx::TensorProto::UINT8).output("y");
  *graph.graph.add_initializer() = weights;
  graph.node("ConvInteger", {"x", "w"}, {"y"}).set("pads", Ints{1, 1, 1, 1});
  std::vector<std::int32_t> sums;
  for (std::int64_t unit = 0; unit < units; ++unit)
    for (std::int64_t row = 0; row < side; ++row)
      for (std::int64_t column = 0; column < side; ++column) {
        std::int32_t sum = 0;
        for (std::int64_t channel = 0; channel < channels; ++channel)
          for (std::int64_t i = 0; i < 9; ++i) {
            const std::int64_t r = row + i / 3 - 1, c = column + i % 3 - 1;
            if (r < 0 || c < 0 || r >= side || c >= side) continue;
            sum += w[static_cast<std::size_t>((unit * channels + channel) * 9 + i)] *
                   x[static_cast<std::size_t>((channel * side + r) * side + c)];
          }
        sums.push_back(sum);
      }
  const Feeds feeds{{"x", Tensor::from<std::uint8_t>(x, DDim{1, channels, side, side})}};
  CHECK(testing::on_cpu(parse(graph), feeds)["y"].tensor().to_vector<std::int32_t>() == sums);
}

/// An LSTM of three units over x [T, batch, 3] whose products are those of bytes; `lengths`: those of the sequences, or "".
GraphBuilder byte_lstm(std::int64_t batch, const std::string& lengths) {
  const auto bytes = [](const std::string& name, const DDim& dims) {
    onnx::TensorProto proto;
    proto.set_name(name);
    proto.set_data_type(onnx::TensorProto::INT8);
    for (const std::int64_t extent : dims) proto.add_dims(extent);
    std::string raw;
    for (std::int64_t i = 0; i < dims.elements(); ++i) raw.push_back(static_cast<char>(i * 37 % 120 - 60));
    proto.set_raw_data(raw);
    return proto;
  };
  GraphBuilder graph;
  graph.input("x", {-1, batch, 3}).initializer("s", Tensor::from<float>({0.01f}, DDim{1})).output("y");
  for (const char* name : {"w", "r"}) *graph.graph.add_initializer() = bytes(name, {1, 3, 12});
  if (batch < 0) graph.graph.mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(1)->set_dim_param("b");
  graph.node("DynamicQuantizeLSTM", {"x", "w", "r", "", lengths, "", "", "", "s", "", "s", ""}, {"y"})
      .domain("com.microsoft")
      .set("hidden_size", 3);
  return graph;
}

TEST_CASE(
    "An LSTM of the dynamic quantizer runs fused over up to 64 sequences of one range, and interpreted over more, with the same bits") {
  for (const std::int64_t batch : {1, -1}) {
    CAPTURE(batch);
    const Program program = parse(byte_lstm(batch, ""));
    for (const std::int64_t sequences : {1, 2, 5, 64, 65}) {
      if (batch > 0 && sequences > batch) continue;
      CAPTURE(sequences);
      testing::Random random(3);
      const Feeds feeds{{"x", testing::random_tensor(random, DDim{6, sequences, 3})}};
      RunOptions interpreted;
      interpreted.backend = Backend::interpreted;
      const RunResult wanted = testing::on_cpu(program, feeds, interpreted);
      for (const int threads : {1, 3}) {
        const RunResult found = testing::run_fifo(run(Executable(program, std::make_shared<CpuDevice>(threads)), feeds));
        CHECK(found.fused_loops == (sequences <= 64 ? 1 : 0));
        CHECK(testing::same_bits(found["y"].tensor(), wanted["y"].tensor()));
      }
    }
  }
}

TEST_CASE("Padding behind the longest sequence does not widen the range of an LSTM of the dynamic quantizer") {
  GraphBuilder graph = byte_lstm(-1, "lengths");
  onnx::TensorProto lengths;
  lengths.set_name("lengths");
  lengths.set_data_type(onnx::TensorProto::INT32);
  lengths.add_dims(2);
  for (const int length : {4, 2}) lengths.add_int32_data(length);
  *graph.graph.add_initializer() = lengths;
  const Program program = parse(graph);
  std::vector<std::vector<float>> found;
  for (const float padding : {0.0F, 1e6F, std::numeric_limits<float>::quiet_NaN()}) {
    testing::Random random(3);
    Tensor x = testing::random_tensor(random, DDim{6, 2, 3});
    std::fill_n(x.mutable_data<float>() + 4 * 2 * 3, 2 * 2 * 3, padding);
    found.push_back(testing::on_cpu(program, {{"x", x}})["y"].tensor().to_vector<float>());
  }
  CHECK(found[1] == found[0]);
  CHECK(found[2] == found[0]);
  CHECK(std::all_of(found[0].begin() + 4 * 2 * 3, found[0].end(), [](float value) { return value == 0; }));
}

TEST_CASE("Nodes that stand before the nodes whose outputs they read are imported as if they stood behind them") {
  GraphBuilder sorted, mixed;
  for (GraphBuilder* graph : {&sorted, &mixed}) graph->input("x", {2, 3}).initializer("W", ones({3, 2})).output("y");
  sorted.node("Neg", {"x"}, {"a"});
  sorted.node("MatMul", {"a", "W"}, {"b"});
  sorted.node("Relu", {"b"}, {"y"});
  mixed.node("Relu", {"b"}, {"y"});
  mixed.node("MatMul", {"a", "W"}, {"b"});
  mixed.node("Neg", {"x"}, {"a"});
  CHECK(print(parse(mixed)) == print(parse(sorted)));
}

TEST_CASE("Nodes whose outputs a sub-graph reads come before the node of the sub-graph, and the nodes of a sub-graph are sorted too") {
  GraphBuilder then;
  then.output("t");
  then.node("Neg", {"u"}, {"t"});
  then.node("Relu", {"late"}, {"u"});
  std::swap(*then.graph.mutable_node(0), *then.graph.mutable_node(1));
  GraphBuilder unsorted_then = then;
  std::swap(*unsorted_then.graph.mutable_node(0), *unsorted_then.graph.mutable_node(1));
  GraphBuilder otherwise;
  otherwise.output("o");
  otherwise.node("Identity", {"late"}, {"o"});
  GraphBuilder sorted, mixed;
  for (GraphBuilder* graph : {&sorted, &mixed}) graph->input("c", {}, onnx::TensorProto::BOOL).input("x", {2}).output("y");
  sorted.node("Sigmoid", {"x"}, {"late"});
  sorted.node("If", {"c"}, {"y"}).set("then_branch", then.graph).set("else_branch", otherwise.graph);
  mixed.node("If", {"c"}, {"y"}).set("then_branch", unsorted_then.graph).set("else_branch", otherwise.graph);
  mixed.node("Sigmoid", {"x"}, {"late"});
  CHECK(print(parse(mixed)) == print(parse(sorted)));
}

TEST_CASE("A cycle of nodes is refused by the name of one of them") {
  GraphBuilder graph = dense();
  graph.node("Relu", {"c"}, {"behind"}).name("behind it");
  graph.node("Add", {"xw", "b"}, {"a"}).name("first");
  graph.node("Relu", {"a"}, {"b"}).name("second");
  graph.node("Neg", {"b"}, {"c"}).name("after it");
  const std::string said = refusal_of(graph);
  CAPTURE(said);
  const bool named = said.starts_with("m.onnx: node 'first' (") || said.starts_with("m.onnx: node 'second' (");
  CHECK(named);
  CHECK(said.find("expected nodes without a cycle, found one that reads what is computed of its own outputs") != std::string::npos);
  GraphBuilder alone = dense();
  alone.node("Add", {"xw", "self"}, {"self"}).name("loop");
  CHECK(refusal_of(alone).starts_with("m.onnx: node 'loop' (Add): expected nodes without a cycle"));
}

}  // namespace
}  // namespace millrace
