// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM, which become loops.
#include <millrace/runtime/models/import/onnx.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <runtime/models/import/with_onnx/imported.h>
#include <support/drive.h>
#include <support/program_runs.h>
#include <support/random_tensor.h>
#include <support/same_bits.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using testing::find_op, testing::GraphBuilder, testing::Ints, testing::list, testing::lstm, testing::ones, testing::ops_of, testing::parse;

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

TEST_CASE("Steps behind the end of every sequence are skipped in fused loops, with the bits of the interpreter") {
  for (const char* direction : {"forward", "reverse", "bidirectional"}) {
    const std::int64_t directions = std::string(direction) == "bidirectional" ? 2 : 1;
    testing::Random random(5);
    GraphBuilder graph;
    graph.input("x", {-1, -1, 3}).input("lens", {-1}, onnx::TensorProto::INT32).output("y").output("yh").output("yc");
    graph.initializer("W", testing::random_tensor(random, DDim{directions, 8, 3}));
    graph.initializer("R", testing::random_tensor(random, DDim{directions, 8, 2}));
    graph.node("LSTM", {"x", "W", "R", "", "lens"}, {"y", "yh", "yc"}).set("direction", direction).set("hidden_size", 2);
    const Program program = parse(graph);
    for (const Op& op : program.block(0).ops)
      if (op.type == "while") CHECK(FusedLoop(program, 0, op).to_string().find("is false for all rows: skipped") != std::string::npos);
    for (const std::vector<std::int32_t>& lengths : std::vector<std::vector<std::int32_t>>{{9, 4, 1}, {3, 4, 1}, {0, 0, 0}, {0, 1, 0}}) {
      CAPTURE(direction);
      CAPTURE(lengths[0]);
      const Feeds feeds{{"x", testing::random_tensor(random, DDim{9, 3, 3})}, {"lens", Tensor::from(lengths, DDim{3})}};
      RunOptions interpreted;
      interpreted.backend = Backend::interpreted;
      const RunResult wanted = testing::on_cpu(program, feeds, interpreted);
      for (const int threads : {1, 2}) {
        const RunResult found = testing::run_fifo(run(Executable(program, std::make_shared<CpuDevice>(threads)), feeds));
        CHECK(found.fused_loops == directions);
        for (const char* name : {"y", "yh", "yc"}) CHECK(testing::same_bits(found[name].tensor(), wanted[name].tensor()));
      }
    }
  }
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
  GraphBuilder graph;
  graph.input("x", {-1, 1, 3}).output("y").initializer("W", ones({1, 8, 3})).initializer("R", ones({1, 8, 2}));
  graph.node("LSTM", {"x", "W", "R"}, {"y"}).set("direction", "reverse");
  CHECK_THROWS_AS(make_recurrence(parse(graph)), UnsupportedError);
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

TEST_CASE("A layer whose initial state is sized by one number of the shape streams where batch and time are both open") {
  GraphBuilder graph;
  graph.input("x", {-1, -1, 3}).output("z").initializer("W", ones({1, 6, 3})).initializer("R", ones({1, 6, 2}));
  graph.initializer("first", Tensor::scalar<std::int64_t>(0)).initializer("zero", list({0}));
  graph.initializer("one", list({1})).initializer("two", list({2}));
  graph.node("Shape", {"x"}, {"s"});
  graph.node("Gather", {"s", "first"}, {"batch"});
  graph.node("Unsqueeze", {"batch", "zero"}, {"listed"});
  graph.node("Concat", {"one", "listed", "two"}, {"dims"}).set("axis", 0);
  graph.node("ConstantOfShape", {"dims"}, {"h0"});
  graph.node("Transpose", {"x"}, {"t"}).set("perm", Ints{1, 0, 2});
  graph.node("GRU", {"t", "W", "R", "", "", "h0"}, {"y"}).set("hidden_size", 2);
  graph.node("Squeeze", {"y", "one"}, {"rows"});
  graph.node("Transpose", {"rows"}, {"z"}).set("perm", Ints{1, 0, 2});
  const Recurrence recurrence = make_recurrence(parse(graph));
  CHECK(recurrence.states.size() == 1);
  REQUIRE(recurrence.outputs.size() == 1);
  CHECK(recurrence.outputs[0].row == DDim{1, 2});
}

TEST_CASE("RNN takes two activations for one direction, as the default of its schema has them") {
  const auto text = [](const std::vector<std::string>& activations) {
    GraphBuilder graph;
    graph.input("x", {5, 1, 3}).initializer("W", ones({1, 2, 3})).initializer("R", ones({1, 2, 2})).output("y");
    testing::NodeBuilder node = graph.node("RNN", {"x", "W", "R"}, {"y"}).set("hidden_size", 2);
    if (!activations.empty()) node.set("activations", activations);
    return print(parse(graph));
  };
  CHECK(text({"Tanh", "Tanh"}) == text({}));
  CHECK(text({"Relu", "Tanh"}) == text({"Relu"}));
  CHECK_THROWS_WITH_AS(text({"Tanh", "Tanh", "Tanh"}), doctest::Contains("attribute activations: expected 1, found 3"), ProgramError);
}

/// Three LSTM layers of 2 units as exporters write them: what lies between two takes the axis of directions out.
Program stacked_lstm(std::int64_t directions, std::int64_t sequences) {
  GraphBuilder graph;
  graph.input("x", {-1, sequences, 2}).initializer("one", list({1})).initializer("flat", list({0, 0, -1})).output("y");
  std::string x = "x";
  for (int layer = 0; layer < 3; ++layer) {
    const std::string at = std::to_string(layer);
    const std::int64_t c = layer == 0 ? 2 : 2 * directions;
    const auto weight = [&](const std::string& name, const DDim& dims) {
      Tensor made = make_darray(dims, 0.0f);
      for (std::int64_t i = 0; i < made.elements(); ++i)
        made.mutable_data<float>()[i] = 0.4f * static_cast<float>((i * 7 + layer) % 5) - 0.8f;
      graph.initializer(name + at, made);
    };
    weight("W", {directions, 8, c});
    weight("R", {directions, 8, 2});
    const std::string made = "made" + at;
    graph.node("LSTM", {x, "W" + at, "R" + at}, {made, "h" + at, "c" + at})
        .set("hidden_size", 2)
        .set("direction", directions == 2 ? "bidirectional" : "forward");
    x = layer == 2 ? "y" : "x" + at;
    if (directions == 1) {
      graph.node("Squeeze", {made, "one"}, {x});
    } else {
      graph.node("Transpose", {made}, {"turned" + at}).set("perm", Ints{0, 2, 1, 3});
      graph.node("Reshape", {"turned" + at, "flat"}, {x});
    }
  }
  return parse(graph);
}

TEST_CASE("Layers of LSTM nodes run side by side on threads, and so do both directions of each") {
  for (const std::int64_t directions : {1, 2})
    for (const std::int64_t sequences : {3, -1}) {
      const Program program = stacked_lstm(directions, sequences);
      Tensor x = make_darray({40, 3, 2}, 0.0f);
      for (std::int64_t i = 0; i < x.elements(); ++i) x.mutable_data<float>()[i] = 0.1f * static_cast<float>(i % 17) - 0.8f;
      const auto on_threads = [&](int threads) {
        return testing::run_fifo(run(Executable(program, make_cpu_device(threads)), {{"x", x}}));
      };
      const RunResult one = on_threads(1);
      const RunResult two = on_threads(2);
      CHECK(one.fused_loops == 3 * directions);
      CHECK(two.loops_side_by_side == 3 * directions);
      const std::size_t bytes = one["y"].tensor().bytes();
      REQUIRE(bytes == two["y"].tensor().bytes());
      CHECK(std::memcmp(one["y"].tensor().raw(), two["y"].tensor().raw(), bytes) == 0);
    }
}

}  // namespace
}  // namespace millrace
