// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <runtime/models/import/with_onnx/imported.h>
#include <support/drive.h>
#include <support/random_tensor.h>
#include <support/step_by_step.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/lowering/loop_form.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/runtime/lowering/recurrence.h>

/// Loops that count by states of their own, as exporters of TensorFlow write them: h' = tanh(x[i]·W + h·R), i' = i + 1, while i' < n.
namespace millrace {
namespace {

using testing::find_op, testing::GraphBuilder, testing::Ints, testing::parse;

/// The differences from the loop that ends by its count.
struct Form {
  bool lazy = false;     ///< the condition outside is true, whatever n is
  bool shifted = false;  ///< the counter begins with 1
  bool wide = false;     ///< the condition asks for the number of the iteration, too
  std::int64_t most = -1;
};

onnx::TensorProto int32_proto(const std::string& name, std::int32_t value) {
  onnx::TensorProto proto;
  proto.set_name(name);
  proto.set_data_type(onnx::TensorProto::INT32);
  proto.add_int32_data(value);
  return proto;
}

/// x [T, B, 3] → y [T, B, 3], the last h, the last i.
GraphBuilder counted(const Form& form, const Tensor& w, const Tensor& r) {
  GraphBuilder body;
  body.input("count", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("i", {}, onnx::TensorProto::INT32);
  body.input("h", {-1, 3}).input("steps", {}, onnx::TensorProto::INT32).input("inner R", {3, 3});
  *body.graph.add_initializer() = int32_proto("one", 1);
  body.node("Gather", {"x", "i"}, {"row"}).set("axis", 0);
  body.node("MatMul", {"row", "W"}, {"taken"});
  body.node("MatMul", {"h", "inner R"}, {"kept"});
  body.node("Add", {"taken", "kept"}, {"sum"});
  body.node("Tanh", {"sum"}, {"next h"});
  body.node("Add", {"i", "one"}, {"next i"});
  body.node("Cast", {"next i"}, {"i float"}).set("to", onnx::TensorProto::FLOAT);
  body.node("Cast", {"steps"}, {"n float"}).set("to", onnx::TensorProto::FLOAT);
  body.node("Less", {"i float", "n float"}, {"less"});
  body.node("Cast", {"count"}, {"count float"}).set("to", onnx::TensorProto::FLOAT);
  body.node("Less", {"count float", "n float"}, {"also"});
  body.node("And", {"less", form.wide ? "also" : "less"}, {"goes"});
  body.node("Identity", {"steps"}, {"next steps"});
  body.node("Identity", {"next h"}, {"given"});
  body.output("goes").output("next i").output("next h").output("next steps").output("inner R").output("given");
  GraphBuilder graph;
  graph.input("x", {-1, 2, 3}).input("h0", {2, 3}).initializer("W", w).initializer("R", r);
  graph.initializer("zero list", testing::list({0}))
      .initializer("one list", testing::list({1}))
      .initializer("most", Tensor::scalar(form.most));
  graph.initializer("yes", Tensor::scalar(true)).initializer("zero", Tensor::scalar(0.0F));
  *graph.graph.add_initializer() = int32_proto("first", form.shifted ? 1 : 0);
  graph.node("Shape", {"x"}, {"shape"});
  graph.node("Cast", {"shape"}, {"extents"}).set("to", onnx::TensorProto::INT32);
  graph.node("Slice", {"extents", "zero list", "one list"}, {"extent"});
  graph.node("Squeeze", {"extent"}, {"n"});
  graph.node("Cast", {"n"}, {"n float outside"}).set("to", onnx::TensorProto::FLOAT);
  graph.node("Less", {"zero", "n float outside"}, {"begins"});
  graph
      .node("Loop", {form.most < 0 ? "" : "most", form.lazy ? "yes" : "begins", "first", "h0", "n", "R"},
            {"last i", "last h", "last n", "last R", "y"})
      .set("body", body.graph);
  return graph.output("y").output("last h").output("last i");
}

/// The number of iterations that ran, by the outputs.
std::int64_t run_all(const Program& program, std::int64_t steps, const Tensor& w, const Tensor& r, std::int64_t first = 0) {
  testing::Random random(static_cast<std::uint64_t>(steps) + 5);
  const Tensor x = testing::random_tensor(random, {std::max<std::int64_t>(steps, 1), 2, 3}).rows(0, steps).copy_to(CpuPlace{});
  const Tensor h0 = testing::random_tensor(random, {2, 3});
  const RunResult result = testing::run_fifo(run(program, Feeds{{"x", x}, {"h0", h0}}));
  Tensor h = h0;
  const Tensor y = result["y"].tensor();
  for (std::int64_t i = 0; i < y.dim(0); ++i) {
    std::vector<float> next;
    const auto now = h.to_vector<float>(), row = x.rows(first + i, first + i + 1).copy_to(CpuPlace{}).to_vector<float>();
    const auto in = w.to_vector<float>(), back = r.to_vector<float>();
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t u = 0; u < 3; ++u) {
        double sum = 0;
        for (std::size_t k = 0; k < 3; ++k) sum += double{row[b * 3 + k]} * in[k * 3 + u] + double{now[b * 3 + k]} * back[k * 3 + u];
        next.push_back(static_cast<float>(std::tanh(sum)));
      }
    const auto found = y.rows(i, i + 1).copy_to(CpuPlace{}).to_vector<float>();
    for (std::size_t k = 0; k < next.size(); ++k) CHECK(found[k] == doctest::Approx(next[k]).epsilon(1e-5));
    h = Tensor::from(found, DDim{2, 3});
  }
  CHECK(testing::bytes_of(result["last h"].tensor()) == testing::bytes_of(h));
  CHECK(result["last i"].tensor().item_int() == first + y.dim(0));
  return y.dim(0);
}

bool is_counted(const Program& program) { return !find_op(program, "while").attributes.has("condition"); }

TEST_CASE("A loop that compares a counter of its own with a limit ends by its count, runs in one piece and goes live") {
  testing::Random random(3);
  const Tensor w = testing::random_tensor(random, {3, 3}), r = testing::random_tensor(random, {3, 3});
  for (const bool wide : {false, true}) {
    const Program program = parse(counted({.wide = wide}, w, r));
    CHECK(is_counted(program));
    CHECK(program.vars()[static_cast<std::size_t>(find_op(program, "while").outputs[1])].type.rank() ==
          2);  // h is all that it carries beside the count
    CHECK(find_op(program, "while").outputs.size() == 2);
    for (const std::int64_t steps : {0, 1, 2, 7}) CHECK(run_all(program, steps, w, r) == steps);
    Program lowered = program;
    lower_for_runs(lowered, CpuPlace{});
    CHECK_NOTHROW(find_loop_form(lowered, 0, find_op(lowered, "while")));
    const Recurrence recurrence = make_recurrence(program);
    CHECK(recurrence.states.size() == 1);
    CHECK(recurrence.at_end == std::vector<std::string>{"last h", "last i"});
  }
}

TEST_CASE("A count that the node names ends such a loop, too") {
  testing::Random random(4);
  const Tensor w = testing::random_tensor(random, {3, 3}), r = testing::random_tensor(random, {3, 3});
  const Program program = parse(counted({.most = 3}, w, r));
  CHECK(is_counted(program));
  for (const std::int64_t steps : {0, 2, 3, 9}) CHECK(run_all(program, steps, w, r) == std::min<std::int64_t>(steps, 3));
}

/// S = h + n·k, for a k that stays; the body calls its states `sum_name` and `k_name`.
GraphBuilder sums(const std::string& sum_name, const std::string& k_name) {
  GraphBuilder body;
  body.input("count", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("j", {}, onnx::TensorProto::INT64);
  body.input(sum_name, {}).input(k_name, {});
  body.node("Add", {"j", "one"}, {"next j"});
  body.node("Identity", {k_name}, {"next k"});
  body.node("Add", {sum_name, k_name}, {"next sum"});
  body.node("Less", {"next j", "n"}, {"goes"});
  body.output("goes").output("next j").output("next sum").output("next k");
  GraphBuilder graph;
  graph.input("n", {}, onnx::TensorProto::INT64).input("a", {}).input("h", {});
  graph.initializer("zero", Tensor::scalar<std::int64_t>(0)).initializer("one", Tensor::scalar<std::int64_t>(1));
  graph.node("Less", {"zero", "n"}, {"begins"});
  graph.node("Loop", {"", "begins", "zero", "h", "a"}, {"J", "S", "K"}).set("body", body.graph);
  return graph.output("J").output("S").output("K");
}

TEST_CASE("A state that stays may have a name outside that the body gives to a state of its own") {
  for (const auto& [sum_name, k_name] : {std::pair("sum", "a"), std::pair("a", "k"), std::pair("sum", "k")}) {
    CAPTURE(sum_name);
    const Program program = parse(sums(sum_name, k_name));
    CHECK(is_counted(program));
    for (const std::int64_t n : {-1, 0, 3}) {
      const RunResult result =
          testing::run_fifo(run(program, Feeds{{"n", Tensor::scalar(n)}, {"a", Tensor::scalar(0.5F)}, {"h", Tensor::scalar(10.0F)}}));
      const std::int64_t times = std::max<std::int64_t>(n, 0);
      CHECK(result["S"].tensor().item() == 10.0 + 0.5 * static_cast<double>(times));
      CHECK(result["J"].tensor().item_int() == times);
      CHECK(result["K"].tensor().item() == 0.5);
    }
  }
}

TEST_CASE("Loops beside each other may have the same names inside") {
  GraphBuilder graph = sums("sum", "k");
  onnx::NodeProto second = graph.graph.node(graph.graph.node_size() - 1);
  second.set_input(3, "S");
  for (int i = 0; i < second.output_size(); ++i) second.set_output(i, "second " + second.output(i));
  *graph.graph.add_node() = second;
  graph.output("second S");
  const Program program = parse(graph);
  const RunResult result = testing::run_fifo(
      run(program, Feeds{{"n", Tensor::scalar<std::int64_t>(3)}, {"a", Tensor::scalar(0.5F)}, {"h", Tensor::scalar(10.0F)}}));
  CHECK(result["S"].tensor().item() == 11.5);
  CHECK(result["second S"].tensor().item() == 13.0);
}

TEST_CASE("A loop within a loop is read anew where a state of the outer one grows") {
  GraphBuilder inner;
  inner.input("inner count", {}, onnx::TensorProto::INT64).input("inner go", {}, onnx::TensorProto::BOOL);
  inner.input("j", {}, onnx::TensorProto::INT64).input("k", {-1, 4}).input("s", {});
  inner.node("Add", {"j", "one"}, {"next j"});
  inner.node("Identity", {"k"}, {"next k"});
  inner.node("ReduceSum", {"k"}, {"k sum"}).set("keepdims", 0);
  inner.node("Add", {"s", "k sum"}, {"next s"});
  inner.node("Less", {"next j", "n"}, {"goes"});
  inner.output("goes").output("next j").output("next k").output("next s");
  GraphBuilder outer;
  outer.input("outer count", {}, onnx::TensorProto::INT64)
      .input("outer go", {}, onnx::TensorProto::BOOL)
      .input("o", {-1, 4})
      .input("sum", {});
  outer.node("Less", {"zero", "n"}, {"begins"});
  outer.node("Loop", {"", "begins", "zero", "o", "sum"}, {"jo", "ko", "so"}).set("body", inner.graph);
  outer.node("Concat", {"ko", "row"}, {"longer"}).set("axis", 0);
  outer.node("Identity", {"outer go"}, {"goes on"});
  outer.output("goes on").output("longer").output("so");
  GraphBuilder graph;
  graph.input("n", {}, onnx::TensorProto::INT64).input("m", {}, onnx::TensorProto::INT64).input("row", {1, 4});
  graph.initializer("zero", Tensor::scalar<std::int64_t>(0)).initializer("one", Tensor::scalar<std::int64_t>(1));
  graph.initializer("yes", Tensor::scalar(true)).initializer("first", Tensor::from<float>({1, 1, 1, 1}, {1, 4}));
  graph.initializer("nothing", Tensor::scalar(0.0F));
  graph.node("Loop", {"m", "yes", "first", "nothing"}, {"O", "S"}).set("body", outer.graph);
  graph.output("O");
  graph.output("S");
  const Program program = parse(graph);
  for (const std::int64_t n : {0, 1, 3})
    for (const std::int64_t m : {0, 1, 3}) {
      const RunResult result = testing::run_fifo(
          run(program, Feeds{{"n", Tensor::scalar(n)}, {"m", Tensor::scalar(m)}, {"row", Tensor::from<float>({1, 1, 1, 1}, {1, 4})}}));
      CHECK(result["O"].tensor().dim(0) == 1 + m);
      CHECK(result["S"].tensor().item() == static_cast<double>(n * 4 * (m * (m + 1) / 2)));
    }
}

TEST_CASE("A limit behind a cast that changes numbers is another limit") {
  for (const int through : {static_cast<int>(onnx::TensorProto::BOOL), static_cast<int>(onnx::TensorProto::INT32)}) {
    CAPTURE(through);
    GraphBuilder body;
    body.input("count", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("j", {}, onnx::TensorProto::INT64);
    body.node("Add", {"j", "one"}, {"next j"});
    body.node("Less", {"next j", "limit"}, {"goes"});
    body.output("goes");
    body.output("next j");
    GraphBuilder graph;
    graph.input("n", {}, onnx::TensorProto::INT64);
    graph.initializer("zero", Tensor::scalar<std::int64_t>(0)).initializer("one", Tensor::scalar<std::int64_t>(1));
    graph.node("Cast", {"n"}, {"narrow"}).set("to", through);
    graph.node("Cast", {"narrow"}, {"limit"}).set("to", onnx::TensorProto::INT64);
    graph.node("Less", {"zero", "n"}, {"begins"});
    graph.node("Loop", {"", "begins", "zero"}, {"J"}).set("body", body.graph);
    graph.output("J");
    const Program program = parse(graph);
    const auto iterations = [&](std::int64_t n) {
      return testing::run_fifo(run(program, Feeds{{"n", Tensor::scalar(n)}}))["J"].tensor().item_int();
    };
    CHECK(iterations(-4) == 0);
    CHECK(iterations(3) == (through == onnx::TensorProto::BOOL ? 1 : 3));
    CHECK(iterations((std::int64_t{1} << 32) + 3) == (through == onnx::TensorProto::BOOL ? 1 : 3));
  }
}

TEST_CASE("Conditions that say more than a count stay conditions") {
  testing::Random random(5);
  const Tensor w = testing::random_tensor(random, {3, 3}), r = testing::random_tensor(random, {3, 3});
  SUBCASE("the first iteration runs whatever the limit is") {
    const Program program = parse(counted({.lazy = true}, w, r));
    CHECK_FALSE(is_counted(program));
    for (const std::int64_t steps : {1, 5}) CHECK(run_all(program, steps, w, r) == steps);
  }
  SUBCASE("the counter begins with another number") {
    const Program program = parse(counted({.shifted = true}, w, r));
    CHECK_FALSE(is_counted(program));
    CHECK(run_all(program, 4, w, r, 1) == 3);
  }
}

}  // namespace
}  // namespace millrace
