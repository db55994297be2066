// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
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

/// Loops of PyTorch's scripts, h' = tanh(x[:, t] + h), that put h' into a result in one of the ways in which people write it.
namespace millrace {
namespace {

using testing::find_op, testing::GraphBuilder, testing::Ints, testing::parse;

Tensor number(std::int64_t value) { return Tensor::scalar<std::int64_t>(value); }

/// x [B, T, 3] and the numbers that exporters keep outside of a loop.
GraphBuilder begin(std::int64_t batch = -1) {
  GraphBuilder graph;
  onnx::ValueInfoProto& port = *graph.input("x", {batch, -1, 3}).graph.mutable_input(0);
  port.mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(1)->set_dim_param("T");
  graph.initializer("yes", Tensor::scalar(true)).initializer("zero", number(0)).initializer("one", number(1));
  for (const std::int64_t value : {-1, 0, 1, 2, 3}) graph.initializer("[" + std::to_string(value) + "]", testing::list({value}));
  graph.initializer("column", testing::list({-1, 1}));
  graph.node("Shape", {"x"}, {"shape"});
  graph.node("Gather", {"shape", "zero"}, {"B"});
  graph.node("Gather", {"shape", "one"}, {"T"});
  graph.node("Unsqueeze", {"B", "[0]"}, {"list of B"});
  graph.node("Unsqueeze", {"T", "[0]"}, {"list of T"});
  graph.node("Concat", {"list of B", "[3]"}, {"state shape"}).set("axis", 0);
  graph.node("ConstantOfShape", {"state shape"}, {"h0"});
  return graph;
}

GraphBuilder step(const std::string& state) {
  GraphBuilder body;
  body.input("t", {}, onnx::TensorProto::INT64).input("go", {}, onnx::TensorProto::BOOL).input("h", {-1, 3});
  body.graph.add_input()->set_name(state);
  body.node("Gather", {"x", "t"}, {"row"}).set("axis", 1);
  body.node("Add", {"row", "h"}, {"sum"});
  body.node("Tanh", {"sum"}, {"next h"});
  body.node("Identity", {"yes"}, {"goes"});
  body.output("goes").output("next h");
  return body;
}

GraphBuilder end(GraphBuilder graph, const GraphBuilder& body, const std::string& first) {
  graph.node("Loop", {"T", "yes", "h0", first}, {"last h", "y"}).set("body", body.graph);
  return graph.output("y");
}

/// `out = torch.cat([out, piece], 1)`; `first` has the rows that out begins with.
GraphBuilder joined(std::int64_t rows, bool wide = false) {
  GraphBuilder graph = begin();
  graph.node("Concat", {"list of B", rows == 0 ? "[0]" : "[1]", "[3]"}, {"first shape"}).set("axis", 0);
  graph.node("ConstantOfShape", {"first shape"}, {"first"});
  GraphBuilder body = step("out");
  body.node("Unsqueeze", {"next h", "[1]"}, {"piece"});
  if (wide) body.node("Concat", {"piece", "piece"}, {"pieces"}).set("axis", 1);
  body.node("Concat", {"out", wide ? "pieces" : "piece"}, {"longer"}).set("axis", 1);
  body.output("longer");
  return end(graph, body, "first");
}

/// `out[:, t] = h`, as the exporter writes it. `extra`: out has so many places that no iteration writes.
GraphBuilder placed(bool extra = false, bool read = false) {
  GraphBuilder graph = begin();
  graph.node("Add", {"list of T", "[1]"}, {"longer T"});
  graph.node("Concat", {"list of B", extra ? "longer T" : "list of T", "[3]"}, {"first shape"}).set("axis", 0);
  graph.node("ConstantOfShape", {"first shape"}, {"first"});
  GraphBuilder body = step("out");
  body.node("Gather", {"out", "t"}, {"place"}).set("axis", 1);
  body.node("Shape", {"place"}, {"place shape"});
  body.node("Expand", {"next h", "place shape"}, {"value"});
  if (read) body.node("Add", {"value", "place"}, {"more"});
  body.node("Shape", {"out"}, {"out shape"});
  body.node("Gather", {"out shape", "zero"}, {"out B"});
  body.node("Range", {"zero", "out B", "one"}, {"range"});
  body.node("Reshape", {"range", "column"}, {"rows"});
  body.node("Unsqueeze", {"t", "[0]"}, {"list of t"});
  body.node("Add", {"rows", "list of t"}, {"both"});
  body.node("Shape", {"both"}, {"both shape"});
  body.node("Expand", {"rows", "both shape"}, {"all rows"});
  body.node("Expand", {"list of t", "both shape"}, {"all t"});
  body.node("Unsqueeze", {"all rows", "[-1]"}, {"row index"});
  body.node("Unsqueeze", {"all t", "[-1]"}, {"t index"});
  body.node("Concat", {"row index", "t index"}, {"index"}).set("axis", -1);
  body.node("Concat", {"both shape", "[3]"}, {"update shape"}).set("axis", 0);
  body.node("Reshape", {read ? "more" : "value", "update shape"}, {"update"});
  body.node("ScatterND", {"out", "index", "update"}, {"written"});
  body.output("written");
  return end(graph, body, "first");
}

/// `out.append(h.unsqueeze(1))`, then `torch.cat(out, axis)`.
GraphBuilder listed(bool wide = false) {
  GraphBuilder graph = begin();
  graph.node("SequenceEmpty", {}, {"none"});
  GraphBuilder body = step("out");
  body.node("Unsqueeze", {"next h", "[1]"}, {"piece"});
  if (wide) body.node("Concat", {"piece", "piece"}, {"pieces"}).set("axis", 1);
  body.node("SequenceInsert", {"out", wide ? "pieces" : "piece"}, {"longer"});
  body.output("longer");
  graph.node("Loop", {"T", "yes", "h0", "none"}, {"last h", "list"}).set("body", body.graph);
  graph.node("ConcatFromSequence", {"list"}, {"y"}).set("axis", -2);
  return graph.output("y");
}

/// Every h, of each sequence: y[b][t][c], with `times` copies of each and zeros in front and behind.
std::vector<float> expected(const Tensor& x, std::int64_t before, std::int64_t times, std::int64_t after) {
  std::vector<float> all;
  const auto rows = x.to_vector<float>();
  for (std::int64_t b = 0; b < x.dim(0); ++b) {
    all.insert(all.end(), static_cast<std::size_t>(before * 3), 0.0F);
    std::vector<float> h(3, 0.0F);
    for (std::int64_t t = 0; t < x.dim(1); ++t) {
      for (std::size_t c = 0; c < 3; ++c) h[c] = std::tanh(rows[static_cast<std::size_t>((b * x.dim(1) + t) * 3) + c] + h[c]);
      for (std::int64_t i = 0; i < times; ++i) all.insert(all.end(), h.begin(), h.end());
    }
    all.insert(all.end(), static_cast<std::size_t>(after * 3), 0.0F);
  }
  return all;
}

/// `empty`: also of no iterations, of which a list cannot be joined.
void expect_rows(const Program& program, std::int64_t before, std::int64_t times, std::int64_t after, bool empty = true) {
  for (const auto& [batch, steps] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {2, 5}, {3, 2}, {2, 0}}) {
    if (steps == 0 && !empty) continue;
    testing::Random random(static_cast<std::uint64_t>(batch + 10 * steps));
    const Tensor x = steps == 0 ? make_darray({batch, 0, 3}, 0.0F) : testing::random_tensor(random, {batch, steps, 3});
    const Tensor y = testing::run_fifo(run(program, Feeds{{"x", x}}))["y"].tensor();
    CHECK(y.dims() == DDim{batch, before + times * steps + after, 3});
    const auto wanted = expected(x, before, times, after), found = y.copy_to(CpuPlace{}).to_vector<float>();
    REQUIRE(wanted.size() == found.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(found[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
  }
}

/// Whether the loop is one of rows, which backends take whole.
bool is_of_rows(const Program& program) {
  Program lowered = program;
  lower_for_runs(lowered, CpuPlace{});
  try {
    find_loop_form(lowered, 0, find_op(lowered, "while"));
    return find_op(program, "while").outputs.size() == 2;  // the count and h
  } catch (const Error&) {
    return false;
  }
}

TEST_CASE("A result that a loop joins to, or writes at the number of its iteration, is an output that the loop scans") {
  for (const GraphBuilder& graph : {joined(0), placed(), listed()}) {
    const Program program = parse(graph);
    expect_rows(program, 0, 1, 0);
    CHECK(is_of_rows(program));
    CHECK(make_recurrence(program).outputs.size() == 1);
  }
}

TEST_CASE("Pieces are joined behind the tensor that a loop begins with") {
  const Program program = parse(joined(1));
  expect_rows(program, 1, 1, 0);
  CHECK(is_of_rows(program));
}

TEST_CASE("A loop of no iterations gives the result that it begins with, whatever says its batch") {
  for (const bool early : {false, true})
    for (const std::int64_t rows : {0, 1}) {
      CAPTURE(early);
      CAPTURE(rows);
      GraphBuilder graph = begin();
      graph.input("given h", {-1, 3}).input("first", {-1, rows == 0 ? 0 : -1, 3}).initializer("most", Tensor::scalar(1e9F));
      GraphBuilder body = step("out");
      body.graph.add_input()->set_name("other");
      body.node("Unsqueeze", {"next h", "[1]"}, {"piece"});
      body.node("Concat", {"out", "piece"}, {"longer"}).set("axis", 1);
      body.node("Unsqueeze", {"sum", "[1]"}, {"other piece"});
      body.node("Concat", {"other", "other piece"}, {"longer other"}).set("axis", 1);
      if (early) {
        body.graph.mutable_output(0)->set_name("small");
        body.node("ReduceSum", {"next h"}, {"size"}).set("keepdims", 0);
        body.node("Less", {"size", "most"}, {"small"});
      }
      body.output("longer").output("longer other");
      graph.node("Loop", {"T", "yes", "given h", "first", "first"}, {"last h", "y", "z"}).set("body", body.graph);
      graph.output("y").output("z");
      const Program program = parse(graph);
      CHECK(find_op(program, "while").outputs.size() == (early ? 3 : 2));  // the count, whether to go on, and h
      for (const std::int64_t steps : {2, 0}) {
        const Feeds feeds{
            {"x", make_darray({2, steps, 3}, 1.0F)}, {"given h", make_darray({2, 3}, 1.0F)}, {"first", make_darray({2, rows, 3}, 1.0F)}};
        const RunResult result = testing::run_fifo(run(program, feeds));
        for (const char* const name : {"y", "z"}) CHECK(result[name].tensor().dims() == DDim{2, rows + steps, 3});
      }
    }
}

TEST_CASE("A result that has other places than those of the iterations stays a state") {
  expect_rows(parse(joined(0, true)), 0, 2, 0);
  expect_rows(parse(listed(true)), 0, 2, 0, false);
  expect_rows(parse(placed(true)), 0, 1, 1);
  expect_rows(parse(placed(false, true)), 0, 1, 0);
}

}  // namespace
}  // namespace millrace
