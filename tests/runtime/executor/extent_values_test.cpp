// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/extent_values.h>

#include <memory>

#include <doctest/doctest.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/text.h>
#include <support/drive.h>

using namespace millrace;

namespace {

/// The standard ops, and "counted", which gives X on and counts its calls.
std::shared_ptr<const OpRegistry> with_counted(const std::shared_ptr<int>& calls) {
  auto registry = std::make_shared<OpRegistry>(*standard_ops());
  OpDef def;
  def.name = "counted";
  def.inputs = {"X"};
  def.outputs = {"Out"};
  def.infer = [](InferContext& context) { context.result(context.type(0)); };
  def.prepare = [calls](const PrepareContext&) -> OpKernel {
    return [calls](OpContext& run) {
      ++*calls;
      run.set(0, run.in(0));
    };
  };
  registry->add(std::move(def));
  return registry;
}

/// x of f32[?, ?]; y: the number of columns and 3, and zeros of these extents.
Executable counted_extents(const std::shared_ptr<int>& calls) {
  return Executable(parse_program(R"(millrace 1 "extents"
input "x" = x: f32[?, ?]
block { idx: 0 parent_idx: -1
  columns: i64[1] = shape(X=x) {start=1, end=2}
  three: i64[1] = constant() {value=i64[1](3)}
  numbers: i64[1] = counted(X=columns)
  extents: i64[2] = concat(Xs=[numbers, three]) {axis=0}
  y: f32[?, ?] = constant_of_shape(Shape=extents) {value=f32[1](0.0)}
}
output "y" = y
)",
                                  {}, with_counted(calls)));
}

Feeds of_extents(std::int64_t rows, std::int64_t columns) {
  Tensor x(DType::f32, DDim{rows, columns});
  x.mutable_data<float>();
  return {{"x", x}};
}

Tensor y_of(const Executable& executable, const Feeds& feeds) { return testing::run_fifo(run(executable, feeds))["y"].tensor(); }

}  // namespace

TEST_CASE("ops on extents alone run once for extents that come again") {
  const auto calls = std::make_shared<int>(0);
  const Executable executable = counted_extents(calls);
  for (int run = 0; run < 3; ++run) CHECK(y_of(executable, of_extents(2, 4)).dims() == DDim{4, 3});
  CHECK(*calls == 1);
  CHECK(y_of(executable, of_extents(5, 4)).dims() == DDim{4, 3});  // the rows are not read
  CHECK(*calls == 1);
  CHECK(y_of(executable, of_extents(5, 6)).dims() == DDim{6, 3});
  CHECK(*calls == 2);
  CHECK(y_of(executable, of_extents(2, 4)).dims() == DDim{4, 3});
  CHECK(*calls == 3);
}

TEST_CASE("a result that follows from extents alone is its caller's to write") {
  const Executable executable = counted_extents(std::make_shared<int>(0));
  for (int run = 0; run < 3; ++run) {
    Tensor y = y_of(executable, of_extents(2, 4));
    CHECK(y.to_vector<float>() == std::vector<float>(12, 0.0f));
    y.mutable_data<float>()[5] = 7.0f;
  }
}

TEST_CASE("elements of a list that are a feed, or follow from extents alone, are their caller's to write") {
  const Executable executable(parse_program(R"(millrace 1 "extents"
input "x" = x: f32[?, ?]
input "given" = given: list<f32[?, ?]>
block { idx: 0 parent_idx: -1
  extents: i64[2] = shape(X=x) {start=0, end=2}
  zeros: f32[?, ?] = constant_of_shape(Shape=extents) {value=f32[1](0.0)}
  made: list<f32[?, ?]> = list_of(Xs=[x, zeros])
  first: i64[] = constant() {value=i64[](0)}
  taken: f32[?, ?] = list_at(List=given, Position=first)
}
output "made" = made
output "taken" = taken
)",
                                            {}));
  Tensor x = Tensor::from<float>(std::vector<float>{1, 2}, {1, 2}), given = Tensor::from<float>(std::vector<float>{3, 4}, {1, 2});
  for (int run = 0; run < 2; ++run) {
    const RunResult result = testing::run_fifo(millrace::run(executable, {{"x", x}, {"given", TensorList({given})}}));
    x.mutable_data<float>()[0] = given.mutable_data<float>()[0] = 9;
    const TensorList& made = result.value("made").list();
    CHECK(made.at(0).to_vector<float>()[0] == (run == 0 ? 1 : 9));
    CHECK(result["taken"].tensor().to_vector<float>()[0] == (run == 0 ? 3 : 9));
    CHECK(made.at(1).to_vector<float>() == std::vector<float>{0, 0});
    for (Tensor element : made.elements()) element.mutable_data<float>()[0] = 7;
  }
}

TEST_CASE("values of many bytes that follow from extents are computed by each run") {
  const Executable executable = counted_extents(std::make_shared<int>(0));
  const auto many = static_cast<std::int64_t>(ExtentValues::most_bytes);
  for (int run = 0; run < 2; ++run) CHECK(y_of(executable, of_extents(1, many)).dims() == DDim{many, 3});
}

TEST_CASE("a failure of an op on extents comes in each run, and a good run after it") {
  const Executable executable(parse_program(R"(millrace 1 "extents"
input "x" = x: f32[?, ?]
block { idx: 0 parent_idx: -1
  columns: i64[1] = shape(X=x) {start=1, end=2}
  four: i64[1] = constant() {value=i64[1](4)}
  left: i64[1] = sub(A=columns, B=four)
  y: f32[?] = constant_of_shape(Shape=left) {value=f32[1](0.0)}
}
output "y" = y
)",
                                            {}));
  CHECK(y_of(executable, of_extents(1, 6)).dims() == DDim{2});
  for (int run = 0; run < 2; ++run) CHECK_THROWS_WITH_AS(y_of(executable, of_extents(1, 3)), doctest::Contains("constant_of_shape"), Error);
  CHECK(y_of(executable, of_extents(1, 6)).dims() == DDim{2});
}

TEST_CASE("a run that lacks memory lets go of what earlier runs have left, and another failure does not") {
  const auto calls = std::make_shared<int>(0);
  auto registry = std::make_shared<OpRegistry>(*with_counted(calls));
  OpDef def = registry->at("counted");
  def.name = "failing";
  int fails = 0;
  def.prepare = [&fails](const PrepareContext&) -> OpKernel {
    return [&fails](OpContext& run) {
      if (fails == 1) throw ShapeError("failing");
      if (fails == 2) throw OutOfMemoryError("failing");
      run.set(0, run.in(0));
    };
  };
  registry->add(std::move(def));
  const Executable executable(parse_program(R"(millrace 1 "extents"
input "x" = x: f32[?, ?]
block { idx: 0 parent_idx: -1
  extents: i64[2] = shape(X=x) {start=0, end=2}
  numbers: i64[2] = counted(X=extents)
  y: f32[?, ?] = failing(X=x)
}
output "y" = y
output "numbers" = numbers
)",
                                            {}, registry));
  const auto run_once = [&] { return y_of(executable, of_extents(2, 4)); };
  run_once();
  run_once();
  CHECK(*calls == 1);
  fails = 1;
  CHECK_THROWS_AS(run_once(), ShapeError);
  fails = 0;
  run_once();
  CHECK(*calls == 1);
  fails = 2;
  CHECK_THROWS_AS(run_once(), OutOfMemoryError);
  fails = 0;
  run_once();
  CHECK(*calls == 2);
}

TEST_CASE("runs side by side keep values of their own") {
  ExtentValuesPool pool;
  const std::unique_ptr<ExtentValues> first = pool.take();
  std::unique_ptr<ExtentValues> second = pool.take();
  CHECK(first != second);
  const ExtentValues* const back = second.get();
  pool.give_back(std::move(second));
  CHECK(pool.take().get() == back);
}
