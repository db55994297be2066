// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <doctest/doctest.h>

#include <runtime/models/import/with_onnx/imported.h>
#include <support/drive.h>
#include <support/random_tensor.h>
#include <support/step_by_step.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/straight_program.h>

/// Graphs over whole sequences, whose rows are shifted, padded, cut, or have shapes that are computed from their number, step by step.
namespace millrace {
namespace {

using testing::GraphBuilder, testing::Ints, testing::list, testing::ones, testing::parse;

constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();

/// x [T, 1, 4] → y, with a GRU of 4 units that nodes may use as `W` and `R`, and lists of small numbers: `i0`, `i1`, `i-1`, ….
struct Live : GraphBuilder {
  explicit Live(const Ints& extents = {-1, 1, 4}) {
    input("x", extents).output("y");
    testing::Random random(3);
    initializer("W", testing::random_tensor(random, {1, 12, 4})).initializer("R", testing::random_tensor(random, {1, 12, 4}));
    for (const std::int64_t number : {0, 1, 2, 3, 4, -1, -2}) initializer("i" + std::to_string(number), list({number}));
    initializer("end", list({last}));
  }
  Live& pad(const std::string& from, const std::string& to, const Ints& pads) {
    initializer(to + " pads", list(pads)).node("Pad", {from, to + " pads"}, {to});
    return *this;
  }
  /// The rows [begin, end) of axis 0.
  Live& cut(const std::string& from, const std::string& to, std::int64_t begin, std::int64_t end) {
    initializer(to + " begin", list({begin})).initializer(to + " end", list({end}));
    node("Slice", {from, to + " begin", to + " end", "i0"}, {to});
    return *this;
  }
  Live& gru(const std::string& from, const std::string& to = "y") {
    node("GRU", {from, "W", "R"}, {to + " apart"}).set("hidden_size", 4);
    node("Squeeze", {to + " apart", "i1"}, {to});
    return *this;
  }
};

/// Step by step, alone and between others.
void expect_same_bits(const GraphBuilder& graph, const Ints& row = {4}, const Ints& counts = {1, 2, 3, 7}) {
  const Program program = parse(graph);
  const Recurrence recurrence = make_recurrence(program);
  const testing::StepByStep steps(recurrence);
  const int open = (*program.var(program.inputs()[0].var).type.shape)[0] == DDim::unknown ? 0 : 1;
  const int axis = recurrence.axis < 0 ? open : recurrence.axis;
  testing::Random random(11);
  for (const std::int64_t count : counts) {
    DDim dims(row);
    const Tensor x = testing::random_tensor(random, dims.inserted(0, count));
    const Tensor whole = x.reshape(axis == 0 ? dims.inserted(0, 1).inserted(0, count) : dims.inserted(0, count).inserted(0, 1));
    const RunResult result = testing::run_fifo(run(program, Feeds{{"x", whole}}));
    const std::vector<std::byte> bits = testing::bytes_of(result["y"].tensor());
    CHECK(steps.run(x) == bits);
    const Tensor other = testing::random_tensor(random, x.dims());
    CHECK(steps.run_all({other, x, other}, {{}, {}, {}})[1] == bits);
  }
}

TEST_CASE("Rows that a graph shifts, differs and puts behind others go live with the bits of the whole") {
  SUBCASE("rows of two steps ago") {
    Live graph;
    graph.pad("x", "wide", {2, 0, 0, 0, 0, 0}).cut("wide", "old", 0, -2).node("Add", {"x", "old"}, {"sum"});
    expect_same_bits(graph.gru("sum"));
  }
  SUBCASE("a token shift by a pad that takes the last row away") {
    Live graph;
    graph.pad("x", "old", {1, 0, 0, -1, 0, 0}).node("Mul", {"x", "old"}, {"product"});
    expect_same_bits(graph.gru("product"));
  }
  SUBCASE("first differences behind a row of zeros, of values that a row of zeros would not give") {
    Live graph;
    graph.cut("x", "new", 1, last).cut("x", "old", 0, -1).node("Sub", {"new", "old"}, {"d"});
    graph.node("Exp", {"d"}, {"e"});
    expect_same_bits(graph.pad("e", "all", {1, 0, 0, 0, 0, 0}).gru("all"));
  }
  SUBCASE("the first row, then differences") {
    Live graph;
    graph.cut("x", "new", 1, last).cut("x", "old", 0, -1).cut("x", "first", 0, 1).node("Sub", {"new", "old"}, {"d"});
    graph.node("Concat", {"first", "d"}, {"all"}).set("axis", 0);
    expect_same_bits(graph.gru("all"));
  }
  SUBCASE("a row that the file holds, then the rows of one step ago") {
    Live graph;
    graph.cut("x", "old", 0, -1).initializer("begin", ones({1, 1, 4})).node("Concat", {"begin", "old"}, {"all"}).set("axis", 0);
    expect_same_bits(graph.gru("all"));
  }
  SUBCASE("truths behind a row of them, as a collapse of repeated labels has them") {
    Live graph;
    graph.initializer("zero", Tensor::scalar(0.0f))
        .initializer("begin", make_darray(DDim{1, 1, 4}, true))
        .node("Greater", {"x", "zero"}, {"up"});
    graph.cut("up", "new", 1, last).cut("up", "old", 0, -1).node("Equal", {"new", "old"}, {"same"});
    graph.node("Concat", {"begin", "same"}, {"truths"}).set("axis", 0);
    graph.node("Cast", {"truths"}, {"all"}).set("to", onnx::TensorProto::FLOAT);
    expect_same_bits(graph.gru("all"));
  }
  SUBCASE("a row of zeros of the extents of the first") {
    Live graph;
    graph.cut("x", "first", 0, 1).cut("x", "old", 0, -1).node("Shape", {"first"}, {"extents"});
    graph.node("ConstantOfShape", {"extents"}, {"none"});
    graph.node("Concat", {"none", "old"}, {"all"}).set("axis", 0);
    expect_same_bits(graph.gru("all"));
  }
}

TEST_CASE("Causal convolutions over pictures of rows go live, padded before them or cut behind them") {
  for (const bool padded : {true, false}) {
    CAPTURE(padded);
    Live graph({1, -1, 4});
    testing::Random random(5);
    graph.initializer("K", testing::random_tensor(random, {2, 1, 3, 3})).node("Unsqueeze", {"x", "i1"}, {"picture"});
    if (padded) {
      graph.pad("picture", "wide", {0, 0, 2, 1, 0, 0, 0, 1}).node("Conv", {"wide", "K"}, {"seen"});
    } else {
      graph.node("Conv", {"picture", "K"}, {"long"}).set("pads", Ints{2, 1, 2, 1});
      graph.node("Slice", {"long", "i0", "i-2", "i2"}, {"seen"});
    }
    graph.node("Elu", {"seen"}, {"z"});
    graph.node("Transpose", {"z"}, {"rows"}).set("perm", Ints{0, 2, 1, 3});
    graph.initializer("flat", list({0, 0, 8})).node("Reshape", {"rows", "flat"}, {"y"});
    expect_same_bits(graph);
  }
}

TEST_CASE("A squeeze that names no axes leaves the rows of a live sequence") {
  for (const std::int64_t units : {1, 3}) {
    GraphBuilder graph;
    graph.input("x", {-1, 4}).initializer("w", ones({4, units})).initializer("i1", list({1})).output("y");
    graph.node("MatMul", {"x", "w"}, {"p"});
    graph.node("Unsqueeze", {"p", "i1"}, {"rows"});
    graph.node("Squeeze", {"rows"}, {"y"});
    const Recurrence recurrence = make_recurrence(parse(graph));
    const testing::StepByStep steps(recurrence);
    testing::Random random(11);
    for (const std::int64_t count : {1, 2, 5}) {
      const Tensor x = testing::random_tensor(random, DDim{count, 4});
      const RunResult result = testing::run_fifo(run(parse(graph), Feeds{{"x", x}}));
      CHECK(steps.run(x) == testing::bytes_of(result["y"].tensor()));
    }
  }
}

TEST_CASE("Shapes that are computed from the number of rows go live") {
  SUBCASE("a norm that is stretched to the shape of what it divides") {
    Live graph;
    graph.node("ReduceL2", {"x"}, {"norm"}).set("axes", Ints{-1});
    graph.node("Shape", {"x"}, {"extents"});
    graph.node("Expand", {"norm", "extents"}, {"wide"});
    graph.node("Div", {"x", "wide"}, {"unit"});
    expect_same_bits(graph.gru("unit"));
  }
  SUBCASE("a row of the file for each step, and the number of the step") {
    Live graph;
    graph.initializer("bias", ones({4}))
        .initializer("zero", Tensor::scalar<std::int64_t>(0))
        .initializer("one", Tensor::scalar<std::int64_t>(1));
    graph.node("Shape", {"x"}, {"extents"});
    graph.node("Gather", {"extents", "zero"}, {"T"}).set("axis", 0);
    graph.node("Expand", {"bias", "extents"}, {"biases"});
    graph.node("Range", {"zero", "T", "one"}, {"steps"});
    graph.node("Cast", {"steps"}, {"numbers"}).set("to", 1);
    graph.initializer("column", list({-1, 1, 1})).node("Reshape", {"numbers", "column"}, {"each"});
    graph.node("Add", {"x", "biases"}, {"sum"});
    graph.node("Mul", {"sum", "each"}, {"product"});
    expect_same_bits(graph.gru("product"));
  }
  SUBCASE("an extent that is picked from the shape as floats") {
    Live graph;
    graph.initializer("two", Tensor::scalar<std::int64_t>(2));
    graph.node("Shape", {"x"}, {"extents"});
    graph.node("Cast", {"extents"}, {"floats"}).set("to", 1);
    graph.node("Gather", {"floats", "two"}, {"width"});
    graph.node("Sqrt", {"width"}, {"root"});
    graph.node("Div", {"x", "root"}, {"scaled"});
    expect_same_bits(graph.gru("scaled"));
  }
  SUBCASE("a stretch that leaves axes of -1 as they are") {
    Live graph;
    graph.initializer("bias", ones({1, 1, 4})).initializer("open", list({-1, -1, -1}));
    graph.node("Shape", {"x"}, {"extents"});
    graph.node("Equal", {"extents", "open"}, {"stays"});
    graph.initializer("ones", list({1, 1, 1})).node("Where", {"stays", "ones", "extents"}, {"wide"});
    graph.node("Expand", {"bias", "wide"}, {"biases"});
    graph.node("Add", {"x", "biases"}, {"sum"});
    expect_same_bits(graph.gru("sum"));
  }
  SUBCASE("heads that are taken apart by an extent of another value") {
    Live graph;
    graph.node("Shape", {"x"}, {"extents"});
    graph.node("Slice", {"extents", "i0", "i2", "i0"}, {"T and 1"});
    graph.node("Concat", {"T and 1", "i2", "i2"}, {"apart"}).set("axis", 0);
    graph.node("Tanh", {"x"}, {"t"});
    graph.node("Reshape", {"t", "apart"}, {"heads"});
    graph.node("Softmax", {"heads"}, {"soft"});
    graph.node("Reshape", {"soft", "extents"}, {"rows"});
    expect_same_bits(graph.gru("rows"));
  }
  SUBCASE("a cut of all rows by a list of int32") {
    Live graph;
    graph.node("Cast", {"i0"}, {"i0 int32"}).set("to", onnx::TensorProto::INT32);
    graph.node("Shape", {"x"}, {"extents"});
    graph.node("Slice", {"extents", "i0", "i1", "i0"}, {"T"});
    graph.node("Cast", {"T"}, {"T int32"}).set("to", onnx::TensorProto::INT32);
    graph.node("Slice", {"x", "i0 int32", "T int32", "i0 int32"}, {"all"});
    expect_same_bits(graph.gru("all"));
  }
  SUBCASE("one extent of int32 beside others of int32") {
    Live graph;
    for (const std::string name : {"i1", "i4"}) graph.node("Cast", {name}, {name + " int32"}).set("to", onnx::TensorProto::INT32);
    graph.node("Shape", {"x"}, {"extent"}).set("start", 0).set("end", 1);
    graph.node("Cast", {"extent"}, {"T"}).set("to", onnx::TensorProto::INT32);
    graph.node("Squeeze", {"T", "i0"}, {"number"});
    graph.node("Unsqueeze", {"number", "i0"}, {"T again"});
    graph.node("Concat", {"T again", "i1 int32", "i4 int32"}, {"shape int32"}).set("axis", 0);
    graph.node("Cast", {"shape int32"}, {"shape"}).set("to", onnx::TensorProto::INT64);
    graph.initializer("bias", ones({1, 1, 4})).node("Expand", {"bias", "shape"}, {"biases"});
    graph.node("Add", {"x", "biases"}, {"sum"});
    expect_same_bits(graph.gru("sum"));
  }
  SUBCASE("a constant beside live rows") {
    Live graph;
    graph.initializer("two", ones({1, 1, 2})).node("Slice", {"x", "i0", "i2", "i2"}, {"half"});
    graph.node("Shape", {"x"}, {"extents"});
    graph.node("Slice", {"extents", "i0", "i1", "i0"}, {"T"});
    graph.node("Concat", {"T", "i1", "i2"}, {"wide"}).set("axis", 0);
    graph.node("Expand", {"two", "wide"}, {"constants"});
    graph.node("Concat", {"half", "constants"}, {"all"}).set("axis", 2);
    expect_same_bits(graph.gru("all"));
  }
}

TEST_CASE("A first state with the extents of what a cell makes of the first row goes live") {
  Live graph({-1, -1, 4});  // batch first, as Keras writes layers with a mask
  graph.node("Transpose", {"x"}, {"by time"}).set("perm", Ints{1, 0, 2});
  graph.node("Slice", {"by time", "i0", "i1", "i0"}, {"first"});
  graph.node("Squeeze", {"first", "i0"}, {"row"});
  graph.node("Shape", {"x"}, {"extents"});
  graph.node("Slice", {"extents", "i0", "i1", "i0"}, {"B"});
  graph.node("Concat", {"B", "i4"}, {"B and 4"}).set("axis", 0);
  graph.initializer("zero", Tensor::scalar(0.0F)).node("Expand", {"zero", "B and 4"}, {"zeros"});
  graph.initializer("M", ones({4, 8})).node("MatMul", {"row", "M"}, {"taken"});
  graph.node("MatMul", {"zeros", "M"}, {"kept"});
  graph.node("Add", {"taken", "kept"}, {"sum"});
  graph.node("Split", {"sum"}, {"gate", "other"}).set("axis", 1);
  graph.node("Sigmoid", {"gate"}, {"open"});
  graph.node("Tanh", {"other"}, {"new"});
  graph.node("Mul", {"open", "new"}, {"made"});
  graph.node("Shape", {"made"}, {"of state"});
  graph.node("ConstantOfShape", {"of state"}, {"state"}).set("value", exporting::tensor_proto(Tensor::from<float>({0.5F}), "half"));
  graph.node("Unsqueeze", {"state", "i0"}, {"h0"});
  graph.node("GRU", {"by time", "W", "R", "", "", "h0"}, {"apart"}).set("hidden_size", 4);
  graph.node("Squeeze", {"apart", "i1"}, {"of time"});
  graph.node("Transpose", {"of time"}, {"y"}).set("perm", Ints{1, 0, 2});
  expect_same_bits(graph);
}

/// x [T, 1, 4] → y: the sum of the rows so far that a condition takes.
Live choosing(const std::string& condition) {
  GraphBuilder taken, left, body;
  taken.output("sum").node("Add", {"h", "row"}, {"sum"});
  left.output("same").node("Identity", {"h"}, {"same"});
  body.input("h", {1, 4}).input("row", {1, 4}).output("next").output("given");
  body.node("ReduceMax", {"row"}, {"most"}).set("keepdims", 0);
  body.node("Greater", {"most", "zero"}, {"positive"});
  body.node("If", {condition}, {"next"}).name("choice").set("then_branch", taken.graph).set("else_branch", left.graph);
  body.node("Identity", {"next"}, {"given"});
  Live graph;
  graph.input("on", {}, onnx::TensorProto::BOOL).initializer("zero", Tensor::scalar(0.0F)).initializer("h0", ones({1, 4}));
  graph.node("Scan", {"h0", "x"}, {"last", "y"}).set("num_scan_inputs", 1).set("body", body.graph);
  return graph;
}

TEST_CASE("A branch that an input chooses for a whole sequence is refused with the flag that fixes it, one that a row chooses without") {
  const auto refused = [](const std::string& condition) -> std::string {
    try {
      make_recurrence(parse(choosing(condition)));
    } catch (const UnsupportedError& error) {
      return error.what();
    }
    return "";
  };
  const std::string by_input = refused("on"), by_row = refused("positive");
  CHECK(by_input.find("op if 'choice'") != std::string::npos);
  CHECK(by_input.find("--const INPUT=NUMBER") != std::string::npos);
  CHECK(by_row.find("chooses by a row or by the number of the step") != std::string::npos);
  CHECK(by_row.find("--const") == std::string::npos);
}

/// Names the open extents of an input.
void name_extents(GraphBuilder& graph, int input, const std::vector<std::string>& names) {
  auto& shape = *graph.graph.mutable_input(input)->mutable_type()->mutable_tensor_type()->mutable_shape();
  for (int axis = 0; axis < shape.dim_size(); ++axis)
    if (!names[static_cast<std::size_t>(axis)].empty()) shape.mutable_dim(axis)->set_dim_param(names[static_cast<std::size_t>(axis)]);
}

/// x [batch, time, 4] and h0 [1, batch, 4] → y [batch, time, 1, 4].
Live batch_first(const std::vector<std::string>& x, const std::vector<std::string>& h0) {
  Live graph({-1, -1, 4});
  graph.input("h0", {1, -1, 4});
  name_extents(graph, 0, x);
  name_extents(graph, 1, h0);
  graph.node("Transpose", {"x"}, {"by time"}).set("perm", Ints{1, 0, 2});
  graph.node("GRU", {"by time", "W", "R", "", "", "h0"}, {"of time"}).set("hidden_size", 4);
  graph.node("Transpose", {"of time"}, {"y"}).set("perm", Ints{2, 0, 1, 3});
  return graph;
}

TEST_CASE("The names of extents tell the rows from the batch of a state that is given") {
  const Program program = parse(batch_first({"batch", "time", ""}, {"", "batch", ""}));
  CHECK(program.inputs()[0].extents == std::vector<std::string>{"batch", "time", ""});
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.extent == "time");
  REQUIRE(recurrence.inputs.size() == 1);
  CHECK(recurrence.inputs[0].row == DDim{1, 4});
  REQUIRE(recurrence.given.size() == 1);
  CHECK(recurrence.given[0].dims == DDim{1, 1, 4});
  CHECK(recurrence.to_string().starts_with("rows arrive along the extent 'time' of the inputs"));
  testing::Random random(5);
  const Tensor x = testing::random_tensor(random, {6, 1, 4});
  const Tensor h0 = testing::random_tensor(random, {1, 1, 4});
  const RunResult whole = testing::run_fifo(run(program, Feeds{{"x", x.reshape({1, 6, 4})}, {"h0", h0}}));
  CHECK(testing::StepByStep(recurrence).run(x, {h0}) == testing::bytes_of(whole["y"].tensor()));
}

/// x [1, time, 4] and columns [1, 4, time] → y [1, time, 4].
Live rows_and_columns(const char* op) {
  Live graph({1, -1, 4});
  graph.input("columns", {1, 4, -1});
  name_extents(graph, 0, {"", "time", ""});
  name_extents(graph, 1, {"", "", "time"});
  graph.node("Transpose", {"x"}, {"by time"}).set("perm", Ints{1, 0, 2});
  graph.gru("by time", "of time");
  graph.node("Transpose", {"of time"}, {"made"}).set("perm", Ints{1, 0, 2});
  graph.node(op, {"columns"}, {"seen"});
  graph.node("Transpose", {"seen"}, {"rows"}).set("perm", Ints{0, 2, 1});
  graph.node("Add", {"made", "rows"}, {"y"});
  return graph;
}

TEST_CASE("Inputs that have the rows of one extent along several axes are all live") {
  const Program program = parse(rows_and_columns("Relu"));
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.given.empty());
  REQUIRE(recurrence.inputs.size() == 2);
  REQUIRE(recurrence.states.size() == 1);
  testing::Random random(7);
  const Tensor x = testing::random_tensor(random, {6, 4}), columns = testing::random_tensor(random, {1, 4, 6});
  const RunResult whole = testing::run_fifo(run(program, Feeds{{"x", x.reshape({1, 6, 4})}, {"columns", columns}}));
  const std::vector<std::byte> expected = testing::bytes_of(whole["y"].tensor());
  const StraightProgram step(recurrence.step);
  std::vector<Value> states = StraightProgram(recurrence.start).run({});
  std::vector<std::byte> bits;
  for (std::int64_t t = 0; t < 6; ++t) {
    const Tensor column = columns.select(2, t).copy_to(CpuPlace{});
    std::vector<Value> made =
        step.run({x.rows(t, t + 1).reshape(recurrence.inputs[0].dims), column.reshape(recurrence.inputs[1].dims), states[0]});
    const std::vector<std::byte> row = testing::bytes_of(made[0].tensor().tensor());
    bits.insert(bits.end(), row.begin(), row.end());
    states[0] = made[1];
  }
  CHECK(bits == expected);
}

TEST_CASE("Inputs that have the rows of the only extent along several axes need no state") {
  Live graph({1, -1, 4});
  graph.input("columns", {1, 4, -1});
  name_extents(graph, 0, {"", "time", ""});
  name_extents(graph, 1, {"", "", "time"});
  graph.node("Transpose", {"columns"}, {"rows"}).set("perm", Ints{0, 2, 1});
  graph.node("Add", {"x", "rows"}, {"y"});
  const Recurrence recurrence = make_recurrence(parse(graph));
  CHECK(recurrence.extent == "time");
  CHECK(recurrence.inputs.size() == 2);
  CHECK(recurrence.given.empty());
}

TEST_CASE("A refusal of rows along several axes says why the extent by its name is none") {
  const Program program = parse(rows_and_columns("GlobalMaxPool"));
  try {
    make_recurrence(program);
    FAIL("went live");
  } catch (const UnsupportedError& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find("'columns' has the rows 'time' along axis 2") != std::string::npos);
    CHECK(text.find("along extent 'time': op reduce") != std::string::npos);
  }
}

TEST_CASE("A value that is given and only read does not make the batch the rows") {
  Live graph({-1, -1, 4});
  graph.input("speaker", {1, 4});
  name_extents(graph, 0, {"batch", "time", ""});
  graph.node("Add", {"x", "speaker"}, {"spoken"});
  graph.node("Transpose", {"spoken"}, {"by time"}).set("perm", Ints{1, 0, 2});
  graph.node("GRU", {"by time", "W", "R"}, {"of time"}).set("hidden_size", 4);
  graph.node("Transpose", {"of time"}, {"y"}).set("perm", Ints{2, 0, 1, 3});
  const Program program = parse(graph);
  const Recurrence recurrence = make_recurrence(program);
  CHECK(recurrence.axis == 1);
  testing::Random random(6);
  const Tensor x = testing::random_tensor(random, {6, 1, 4});
  const Tensor speaker = testing::random_tensor(random, {1, 4});
  const RunResult whole = testing::run_fifo(run(program, Feeds{{"x", x.reshape({1, 6, 4})}, {"speaker", speaker}}));
  CHECK(testing::StepByStep(recurrence).run(x, {speaker}) == testing::bytes_of(whole["y"].tensor()));
}

TEST_CASE("Names of extents that no line of text can hold are left out") {
  const Program program = parse(batch_first({"batch", "ti\x1b[31mme", ""}, {"", "b\xff", ""}));
  CHECK(program.inputs()[0].extents == std::vector<std::string>{"batch", "", ""});
  CHECK(program.inputs()[1].extents.empty());
}

TEST_CASE("Extents without names, or with one name for two axes, leave the rows unclear") {
  CHECK_THROWS_AS(make_recurrence(parse(batch_first({"n", "n", ""}, {"", "n", ""}))), UnsupportedError);
  CHECK_THROWS_AS(make_recurrence(parse(batch_first({"", "time", ""}, {"", "time", ""}))), UnsupportedError);
}

/// x [batch, 1, T, 7] or [batch, 1, 7, T] → y: convolutions along both axes, one behind the other, each behind a Pad of its own. The first has `more` rows of
/// zeros beyond those that its window reaches back to.
Live padded_pictures(testing::Random& random, bool rows_last, std::int64_t more) {
  Live graph(rows_last ? Ints{-1, 1, 7, -1} : Ints{-1, 1, -1, 7});
  name_extents(graph, 0, rows_last ? std::vector<std::string>{"batch", "", "", "time"} : std::vector<std::string>{"batch", "", "time", ""});
  const auto axes = [rows_last](std::int64_t time, std::int64_t other) { return rows_last ? Ints{other, time} : Ints{time, other}; };
  const std::int64_t count = random.between(1, 2);
  std::int64_t channels = 1;
  std::string from = "x";
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i), to = i + 1 == count ? "y" : "seen" + number;
    const std::int64_t kernel = random.between(2, 5), dilation = random.between(1, 3), made = random.between(1, 3);
    const Ints shape = axes(kernel, 3);
    graph.initializer("K" + number, testing::random_tensor(random, {made, channels, shape[0], shape[1]}));
    Ints pads(8, 0);
    pads[rows_last ? 3 : 2] = dilation * (kernel - 1) + (i == 0 ? more : 0);
    graph.pad(from, "wide" + number, pads);
    const Ints ends = axes(0, 1);
    graph.node("Conv", {"wide" + number, "K" + number}, {to})
        .set("dilations", axes(dilation, 1))
        .set("strides", axes(1, random.between(1, 2)))
        .set("pads", Ints{ends[0], ends[1], ends[0], ends[1]});
    channels = made;
    from = to;
  }
  return graph;
}

TEST_CASE("Causal convolutions over pictures of an open batch go live behind a Pad of the rows they reach back to") {
  for (const std::uint64_t seed : testing::seeds(30)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const bool rows_last = random.coin();
    const Program program = parse(padded_pictures(random, rows_last, 0));
    const Recurrence recurrence = make_recurrence(program);
    CHECK(recurrence.extent.empty());
    CHECK(recurrence.axis == (rows_last ? 3 : 2));
    const testing::StepByStep steps(recurrence);
    for (const std::int64_t count : {1, 2, 9}) {
      const Tensor x = testing::random_tensor(random, {count, 1, 1, 7}), other = testing::random_tensor(random, {count, 1, 1, 7});
      const Tensor given = x.permute(rows_last ? std::vector<int>{1, 2, 3, 0} : std::vector<int>{1, 2, 0, 3}).copy_to(CpuPlace{});
      const RunResult whole = testing::run_fifo(run(program, Feeds{{"x", given}}));
      const Tensor y = whole["y"].tensor().permute(rows_last ? std::vector<int>{3, 0, 1, 2} : std::vector<int>{2, 0, 1, 3});
      CHECK(steps.run(x) == testing::bytes_of(y));
      CHECK(steps.run_all({other, x, other}, {{}, {}, {}})[1] == testing::bytes_of(y));
    }
  }
}

TEST_CASE("More rows of zeros than convolutions of an open batch reach back to are refused, and fewer") {
  for (const std::uint64_t seed : testing::seeds(8)) {
    for (const std::int64_t more : {-1, 1, 2}) {
      INFO("seed ", seed, ", more ", more);
      testing::Random random(seed);
      CHECK_THROWS_AS(make_recurrence(parse(padded_pictures(random, random.coin(), more))), UnsupportedError);
    }
  }
}

TEST_CASE(
    "Causal convolutions with activations and a residual sum behind them have the bits of the whole, which computes these in one op") {
  for (const std::uint64_t seed : testing::seeds(4)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    Live graph({1, -1, 4});
    const auto weights = [&](const char* name, const DDim& dims) { graph.initializer(name, testing::random_tensor(random, dims)); };
    weights("K0", {4, 4, 3});
    weights("bias", {4});
    weights("slopes", {4, 1});
    weights("K1", {4, 1, 2});
    weights("K2", {4, 4, 1});
    graph.node("Transpose", {"x"}, {"columns"}).set("perm", Ints{0, 2, 1});
    graph.node("Conv", {"columns", "K0", "bias"}, {"seen"}).set("dilations", Ints{2}).set("pads", Ints{4, 0});
    graph.node("PRelu", {"seen", "slopes"}, {"first"});
    graph.node("Conv", {"first", "K1"}, {"each"}).set("pads", Ints{1, 0}).set("group", 4);
    graph.node("Sigmoid", {"each"}, {"gate"});
    graph.node("Mul", {"each", "gate"}, {"swish"});
    graph.node("Conv", {"swish", "K2"}, {"mixed"});
    graph.node("Add", {"first", "mixed"}, {"sum"});
    graph.node("HardSwish", {"sum"}, {"made"});
    graph.node("Transpose", {"made"}, {"y"}).set("perm", Ints{0, 2, 1});
    expect_same_bits(graph, {4}, {1, 5, 70, 131});
  }
}

TEST_CASE("One Pad serves several causal convolutions, with what lies between them, and goes live") {
  for (const std::uint64_t seed : testing::seeds(12)) {
    for (const std::int64_t more : {0, 1}) {
      INFO("seed ", seed, ", more ", more);
      testing::Random random(seed);
      Live graph({1, -1, 4});
      const std::int64_t k0 = random.between(2, 3), k1 = random.between(2, 4), d0 = random.between(1, 3), d1 = random.between(1, 2);
      const auto weights = [&](const char* name, const DDim& dims) { graph.initializer(name, testing::random_tensor(random, dims)); };
      weights("K0", {3, 4, k0});
      weights("bias", {3});
      weights("scale", {1, 1, 3});
      weights("K1", {2, 3, k1});
      graph.node("Transpose", {"x"}, {"columns"}).set("perm", Ints{0, 2, 1});
      graph.pad("columns", "wide", {0, 0, (k0 - 1) * d0 + (k1 - 1) * d1 + more, 0, 0, 0});
      const bool bias = random.coin();
      graph.node("Conv", bias ? std::vector<std::string>{"wide", "K0", "bias"} : std::vector<std::string>{"wide", "K0"}, {"seen"})
          .set("dilations", Ints{d0});
      graph.node("Transpose", {"seen"}, {"rows"}).set("perm", Ints{0, 2, 1});
      graph.node("Mul", {"rows", "scale"}, {"scaled"});
      graph.node(random.coin() ? "Sigmoid" : "Relu", {"scaled"}, {"made"});
      graph.node("Concat", {"made", "scaled"}, {"both"}).set("axis", 0);
      graph.node("ReduceSum", {"both"}, {"sum"}).set("keepdims", 1);
      graph.graph.mutable_node(graph.graph.node_size() - 1)->add_input("i0");
      graph.node("Transpose", {"sum"}, {"again"}).set("perm", Ints{0, 2, 1});
      graph.node("Conv", {"again", "K1"}, {"last"}).set("dilations", Ints{d1});
      graph.node("Transpose", {"last"}, {"y"}).set("perm", Ints{0, 2, 1});
      if (more == 0)
        expect_same_bits(graph);
      else
        CHECK_THROWS_AS(make_recurrence(parse(graph)), UnsupportedError);
    }
  }
}

TEST_CASE("Causal pools by the mean go live, whose windows are all full") {
  for (const std::int64_t kernel : {1, 2, 3, 5}) {
    for (const bool pads : {false, true}) {
      INFO("kernel ", kernel, ", pads ", pads);
      Live graph({1, -1, 4});
      graph.node("Transpose", {"x"}, {"columns"}).set("perm", Ints{0, 2, 1});
      graph.pad("columns", "wide", {0, 0, pads ? 0 : kernel - 1, 0, 0, 0});
      auto pool = graph.node("AveragePool", {"wide"}, {"mean"}).set("kernel_shape", Ints{kernel});
      if (pads) pool.set("pads", Ints{kernel - 1, 0}).set("count_include_pad", 1);
      graph.node("Transpose", {"mean"}, {"by time"}).set("perm", Ints{2, 0, 1});
      graph.gru("by time", "of time");
      graph.node("Transpose", {"of time"}, {"y"}).set("perm", Ints{1, 0, 2});
      expect_same_bits(graph);
    }
  }
}

TEST_CASE("Rows that take the number of others are refused") {
  for (const bool wide : {true, false}) {
    CAPTURE(wide);
    Live graph({-1, 4, 6});
    graph.pad("x", "wide", {2, 0, 0, 0, 0, 0});
    graph.node("Shape", {wide ? "wide" : "x"}, {"extents"});
    graph.node("Slice", {"extents", "i0", "i1"}, {"count"});
    graph.node("Concat", {"count", "i-1"}, {"flat"}).set("axis", 0);
    graph.node("Reshape", {wide ? "x" : "wide", "flat"}, {"y"});
    CHECK_THROWS_AS(make_recurrence(parse(graph)), UnsupportedError);
  }
}

/// x [T, 1, 4] behind two rows of zeros.
Live wide_live() {
  Live graph;
  return graph.pad("x", "wide", {2, 0, 0, 0, 0, 0});
}
/// The number of rows of `of`, as a list.
void count(Live& graph, const std::string& of) {
  graph.node("Shape", {of}, {"extents"});
  graph.node("Slice", {"extents", "i0", "i1"}, {"count"});
}
/// The rows of `wide` from row `begin` on to the number that was counted and `more`.
void splice(Live& graph, const std::string& to, std::int64_t begin, std::int64_t more) {
  graph.initializer(to + " more", list({more})).initializer(to + " begin", list({begin}));
  graph.node("Add", {"count", to + " more"}, {to + " end"});
  graph.node("Slice", {"wide", to + " begin", to + " end", "i0"}, {to});
}

TEST_CASE("Rows cut at their number and some more go live, of as many rows before the first one") {
  SUBCASE("frames beside those before them") {
    Live graph = wide_live();
    count(graph, "x");
    for (const std::int64_t row : {0, 1, 2}) splice(graph, "row" + std::to_string(row), row, row);
    graph.node("Sub", {"row0", "row1"}, {"older"});
    graph.node("Mul", {"older", "row2"}, {"product"});
    expect_same_bits(graph.gru("product"));
  }
  SUBCASE("the number of the padded rows, less the padding") {
    Live graph = wide_live();
    count(graph, "wide");
    splice(graph, "old", 0, -2);
    graph.node("Add", {"x", "old"}, {"sum"});
    expect_same_bits(graph.gru("sum"));
  }
  SUBCASE("fewer rows than steps, of which an end before the first row counts from behind") {
    Live graph = wide_live();
    count(graph, "x");
    splice(graph, "old", 0, -1);
    graph.gru("old");
    CHECK_THROWS_AS(make_recurrence(parse(graph)), UnsupportedError);
  }
}

TEST_CASE("A loop over another axis than that of the rows gives each row its own") {
  Live graph({-1, 1, 4});
  graph.node("Transpose", {"x"}, {"inner"}).set("perm", Ints{2, 0, 1});  // four steps of one number, of T sequences
  testing::Random random(8);
  graph.initializer("w", testing::random_tensor(random, {1, 6, 1})).initializer("r", testing::random_tensor(random, {1, 6, 2}));
  graph.node("GRU", {"inner", "w", "r"}, {"apart"}).set("hidden_size", 2).set("direction", "reverse");
  graph.node("Squeeze", {"apart", "i1"}, {"made"});
  graph.node("Transpose", {"made"}, {"y"}).set("perm", Ints{1, 0, 2});
  expect_same_bits(graph);
}

TEST_CASE("Rows that no step has, or too many of them, are refused by the name of the node") {
  const auto refused = [](const GraphBuilder& graph, const char* why) {
    CHECK_THROWS_WITH_AS(make_recurrence(parse(graph)), doctest::Contains(why), UnsupportedError);
  };
  Live output;
  refused(output.pad("x", "y", {2, 0, 0, 0, 0, 0}), "op pad 'y': pads the rows before the first one");
  Live layer;
  refused(layer.pad("x", "wide", {2, 0, 0, 0, 0, 0}).gru("wide"), "op pad 'wide': pads the rows before the first one");
  Live valid;
  refused(valid.cut("x", "y", 1, last), "op slice 'y': takes some of the rows");
  Live ahead;
  ahead.cut("x", "new", 1, last);
  refused(ahead.pad("new", "y", {0, 0, 0, 1, 0, 0}), "op pad 'y': adds 1 rows behind the last one");
  for (const bool cut :
       {false, true}) {  // a look-ahead stays the reason when a causal convolution is behind it, and when a cut takes another row away
    CAPTURE(cut);
    Live both({1, 4, -1});
    both.initializer("K", ones({4, 4, 2})).node("Slice", {"x", "i1", "end", "i2"}, {"new"});
    both.pad("new", "ahead", {0, 0, 0, 0, 0, cut ? 2 : 1}).pad("ahead", "left", {0, 0, 1, 0, 0, cut ? -1 : 0});
    both.node("Conv", {"left", "K"}, {"y"});
    refused(both, cut ? "op pad 'ahead': adds 2 rows behind the last one" : "op pad 'ahead': adds 1 rows behind the last one");
  }
  Live picture({-1, -1, 4});  // a convolution of pictures, as many rows before each as behind it
  picture.initializer("K", ones({1, 1, 3, 3})).node("Unsqueeze", {"x", "i1"}, {"one"});
  picture.node("Conv", {"one", "K"}, {"seen"}).name("conv").set("auto_pad", "SAME_UPPER");
  picture.node("Squeeze", {"seen", "i1"}, {"y"});
  refused(picture, "op pad 'conv': pads rows before the first one and 1 behind the last one");
}

}  // namespace
}  // namespace millrace
