// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/ops.h>

#include <doctest/doctest.h>

#include <millrace/kernels/elementwise.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/text.h>

#include "support/built.h"

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Feeds, millrace::LoD, millrace::LoDError, millrace::LoDTensor, millrace::Program,
    millrace::ProgramError, millrace::Tensor, millrace::VarType;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

Var ragged(const char* name, int levels = 1) { return input(name, VarType(DType::f32, {DDim::unknown}, levels)); }
LoDTensor three(const std::vector<LoD::Level>& lengths) { return {Tensor::from<float>({1, 2, 3}), LoD::from_lengths(lengths)}; }

}  // namespace

TEST_CASE("operators and functions compute what they are called") {
  const auto on = [](const std::function<Var(const Var&, const Var&)>& f) {
    return built_values<float>([&] { return f(constant(Tensor::from<float>({4, -9})), constant(Tensor::from<float>({2, 3}))); });
  };
  CHECK(on([](const Var& a, const Var& b) { return a + b; }) == Floats{6, -6});
  CHECK(on([](const Var& a, const Var& b) { return a - b; }) == Floats{2, -12});
  CHECK(on([](const Var& a, const Var& b) { return a * b; }) == Floats{8, -27});
  CHECK(on([](const Var& a, const Var& b) { return a / b; }) == Floats{2, -3});
  CHECK(on([](const Var& a, const Var&) { return -a; }) == Floats{-4, 9});
  CHECK(on([](const Var& a, const Var& b) { return minimum(a, b); }) == Floats{2, -9});
  CHECK(on([](const Var& a, const Var& b) { return maximum(a, b); }) == Floats{4, 3});
  CHECK(on([](const Var& a, const Var& b) { return pow(a, b); }) == Floats{16, -729});
  CHECK(on([](const Var& a, const Var&) { return relu(a); }) == Floats{4, 0});
  CHECK(on([](const Var& a, const Var&) { return millrace::build::abs(a); }) == Floats{4, 9});
  CHECK(on([](const Var& a, const Var&) { return millrace::build::sqrt(millrace::build::abs(a)); }) == Floats{2, 3});
  CHECK(on([](const Var& a, const Var& b) { return where(less(a, b), a, b); }) == Floats{2, -9});
  CHECK(on([](const Var& a, const Var& b) { return where(logical_or(greater(a, b), equal(a, b)), a, 0.0); }) == Floats{4, 0});
  CHECK(on([](const Var& a, const Var& b) { return where(logical_and(less_equal(a, b), not_equal(a, b)), 1.0, 0.0); }) == Floats{0, 1});
  CHECK(on([](const Var& a, const Var& b) { return where(logical_not(greater_equal(a, b)), 1.0, 0.0); }) == Floats{0, 1});
  CHECK(on([](const Var& a, const Var&) { return sum(a, {0}); }) == Floats{-5});
  CHECK(on([](const Var& a, const Var&) { return mean(a, {0}); }) == Floats{-2.5f});
  CHECK(on([](const Var& a, const Var& b) { return split(concat({a, b}, 0), 0, {1, 2, 1})[1]; }) == Floats{-9, 2});
  CHECK(on([](const Var& a, const Var& b) { return slice(concat({a, b}, 0), 0, 1, 3); }) == Floats{-9, 2});
  CHECK(on([](const Var& a, const Var&) { return gather(a, constant(Tensor::from<std::int64_t>({1, 1, 0}))); }) == Floats{-9, -9, 4});
  CHECK(on([](const Var& a, const Var& b) { return transpose(reshape(concat({a, b}, 0), {2, 2}), {1, 0}); }) == Floats{4, 2, -9, 3});
  CHECK(on([](const Var& a, const Var& b) { return matmul(reshape(a, {1, 2}), reshape(b, {2, 1})); }) == Floats{-19});
}

TEST_CASE("a literal takes the dtype of the rows beside it, and keeps all its bits beside f64") {
  const Feeds feeds{{"x", Tensor::from<double>({1, 3})}};
  const auto x = [] { return input("x", VarType(DType::f64, {2})); };
  CHECK(built_values<double>([&] { return x() * 0.1; }, feeds) == std::vector<double>{1 * 0.1, 3 * 0.1});
  CHECK(built_values<double>([&] { return 2 - x(); }, feeds) == std::vector<double>{1, -1});
  CHECK(built_values<std::int32_t>([] { return constant(Tensor::from<std::int32_t>({5, 7})) * input("n", VarType(DType::i32, {})) + 1; },
                                   {{"n", Tensor::scalar<std::int32_t>(3)}}) == std::vector<std::int32_t>{16, 22});
  CHECK(says(build_refusal([] { input("n", VarType(DType::i64, {2})) * 0.5; }), {"op mul", "i64[2]", "f32[]"}));
}

TEST_CASE("a literal beside a weight or a constant with axes takes its dtype, and of two literals a whole number that of the other") {
  const auto w = [](const char* name) { return parameter(name, Tensor::from<float>({1, 3})); };
  CHECK(built_values<float>([&] { return w("w") * 10; }) == Floats{10, 30});
  CHECK(built_values<float>([&] { return 1 - w("w"); }) == Floats{0, -2});
  CHECK(built_values<float>([&] { return maximum(w("w"), 2); }) == Floats{2, 3});
  CHECK(built_values<double>([] { return parameter("w", Tensor::scalar(0.5)) * 0.1; }) == std::vector<double>{0.5 * 0.1});
  CHECK(built_values<float>([] { return constant(Tensor::from<float>({1, 3})) + 1; }) == Floats{2, 4});
  CHECK(built_values<float>([] { return constant(2.0) * 3; }) == Floats{6});
  CHECK(built_values<float>([] { return constant(3) - 0.5; }) == Floats{2.5});
  CHECK(says(build_refusal([] { parameter("n", Tensor::from<std::int64_t>({1, 2})) * 0.5; }), {"op mul", "i64[2]", "f32[]"}));
}

TEST_CASE("names asked for are made unique, and ports are not") {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {2}));
  CHECK(call1("relu", {x}, {}, "h").name() == "h");
  CHECK(call1("relu", {x}, {}, "h").name() == "h_1");
  CHECK(call1("relu", {x}, {}, "two words").name() == "two_words");
  CHECK(relu(x).name() == "relu");
  CHECK(relu(x).name() == "relu_1");
  CHECK_THROWS_WITH_AS(input("x", VarType(DType::f32, {2})), "input 'x': the name is taken", ProgramError);
}

TEST_CASE("an op with several outputs is no call1, and one that is not registered is named") {
  CHECK(says(
      build_refusal([] { call1("split", {constant(Tensor::from<float>({1, 2}))}, {{"axis", std::int64_t{0}}, {"sizes", Ints{1, 1}}}); }),
      {"op split", "expected one output, found 2"}));
  CHECK(says(build_refusal([] { call("warp", {}); }), {"'warp'"}));
}

TEST_CASE("two inputs of different levels are refused when the program is built, naming both") {
  CHECK(says(build_refusal([] { ragged("a") + ragged("b", 2); }), {"op add", "'a' of f32[?] lod=1", "'b' of f32[?] lod=2"}));
}

TEST_CASE("two inputs of different lengths are refused when the program runs, naming both") {
  const std::string what =
      run_failure<LoDError>([] { return ragged("a") + ragged("b"); }, {{"a", three({{1, 2}})}, {"b", three({{2, 1}})}});
  INFO(what);
  CHECK(says(what, {"[[1,2]]", "[[2,1]]", "op add"}));
}

TEST_CASE("LoD goes with as many rows, losing it silently is refused, and drop_lod takes it away") {
  const Feeds feeds{{"a", three({{1, 2}})}};
  CHECK(built([] { return relu(ragged("a")) * 2.0; }, feeds).lod() == LoD::from_lengths({{1, 2}}));
  CHECK(built([] { return drop_lod(ragged("a")); }, feeds).lod().empty());
  CHECK(built_values<float>([] { return sum(drop_lod(ragged("a")), {0}); }, feeds) == Floats{6});
  for (const auto& lose : std::vector<std::function<Var(const Var&)>>{
           [](const Var& x) { return sum(x, {0}); }, [](const Var& x) { return reshape(x, {1, -1}); },
           [](const Var& x) { return slice(x, 0, 0, 1); }, [](const Var& x) { return concat({x, x}, 0); }})
    CHECK(says(build_refusal([&] { lose(ragged("a")); }), {"silently lose the LoD of 'a' of f32[?] lod=1", "drop_lod"}));
}

// ---- An op from outside the tree ----

namespace {

/// axpy(X, Y) = a·X + Y.
std::shared_ptr<const millrace::OpRegistry> with_axpy() {
  millrace::OpDef axpy;
  axpy.name = "my.axpy";
  axpy.inputs = {"X", "Y"};
  axpy.outputs = {"Out"};
  axpy.infer = [](millrace::InferContext& context) {
    if (context.tensor(0) != context.tensor(1))
      throw ProgramError("expected two of a kind, found " + context.describe(0) + " and " + context.describe(1));
    context.attributes().get<double>("a");
    context.result(context.tensor(0));
  };
  axpy.prepare = [](const millrace::PrepareContext& context) -> millrace::OpKernel {
    return [a = Tensor::scalar(static_cast<float>(context.attributes().get<double>("a")))](millrace::OpContext& run) {
      run.set(0, millrace::add(millrace::mul(a, run.tensor(0), run.stream()), run.tensor(1), run.stream()));
    };
  };
  auto ops = std::make_shared<millrace::OpRegistry>(*millrace::standard_ops());
  ops->add(std::move(axpy));
  return ops;
}

Program loop_of_axpy() {
  Program program(with_axpy());
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {2}));
  const std::vector<Var> last = while_loop(
      [](const std::vector<Var>& now) { return less(now[0], 3); },
      [&](const std::vector<Var>& now) { return std::vector<Var>{now[0] + 1, call1("my.axpy", {x, now[1]}, {{"a", 0.5}})}; }, {0, x});
  output("y", last[1]);
  return program;
}

}  // namespace

TEST_CASE("an op from outside the tree is built, checked, run, printed and read like any other") {
  const Program program = loop_of_axpy();
  const Feeds feeds{{"x", Tensor::from<float>({2, 4})}};
  CHECK(run_fifo(millrace::run(program, feeds))["y"].tensor().to_vector<float>() == Floats{5, 10});
  const std::string text = millrace::print(program);
  CHECK(text.find("my.axpy(X=x, Y=") != std::string::npos);
  const Program back = millrace::parse_program(text, {}, with_axpy());
  CHECK(millrace::print(back) == text);
  CHECK(run_fifo(millrace::run(back, feeds))["y"].tensor().to_vector<float>() == Floats{5, 10});
  CHECK_THROWS_WITH_AS(millrace::parse_program(text, {}), doctest::Contains("'my.axpy' (line "), millrace::UnsupportedError);
}

namespace {

/// An op of f32 [2] that runs `kernel`.
Program with_kernel(millrace::OpKernel kernel) {
  millrace::OpDef def;
  def.name = "my.op";
  def.inputs = {"X", "B?"};
  def.outputs = {"Out"};
  def.infer = [](millrace::InferContext& context) { context.result(context.tensor(0)); };
  def.prepare = [kernel](const millrace::PrepareContext&) -> millrace::OpKernel { return kernel; };
  auto ops = std::make_shared<millrace::OpRegistry>(*millrace::standard_ops());
  ops->add(std::move(def));
  Program program(std::move(ops));
  const Guard guard(program);
  output("y", call1("my.op", {input("x", VarType(DType::f32, {2}))}) + 1.0f);
  return program;
}

}  // namespace

TEST_CASE("a kernel from outside the tree that does other than its inference says, or asks for what there is not, fails by its name") {
  const auto running = [](millrace::OpKernel kernel) {
    return run_fifo(millrace::run(with_kernel(std::move(kernel)), {{"x", Tensor::from<float>({1, 2})}}))["y"].tensor().to_vector<float>();
  };
  using millrace::OpContext;
  CHECK(running([](OpContext& run) { run.set(0, run.in(0)); }) == Floats{2, 3});
  CHECK_THROWS_WITH_AS(running([](OpContext&) {}), doctest::Contains("op my.op, output 'Out': expected f32[2], found none"),
                       millrace::ArgumentError);
  CHECK_THROWS_WITH_AS(running([](OpContext& run) { run.set(0, Tensor::from<double>({1, 2})); }),
                       doctest::Contains("op my.op, output 'Out': expected f32 as inferred, found f64"), millrace::DTypeError);
  CHECK_THROWS_WITH_AS(running([](OpContext& run) { run.set(0, Tensor::from<float>({1, 2, 3})); }),
                       doctest::Contains("op my.op, output 'Out': expected [2] as inferred, found [3]"), millrace::ShapeError);
  CHECK_THROWS_WITH_AS(running([](OpContext& run) { run.set(0, LoDTensor(run.tensor(0), LoD::from_lengths({{2}}))); }),
                       doctest::Contains("op my.op, output 'Out': expected 0 levels of LoD as inferred, found 1: [[2]]"),
                       millrace::LoDError);
  CHECK_THROWS_WITH_AS(running([](OpContext& run) { run.set(3, run.in(0)); }),
                       doctest::Contains("op my.op: expected an output below 1, found 3"), millrace::IndexError);
  CHECK_THROWS_WITH_AS(running([](OpContext& run) { run.set(0, run.tensor(7)); }), doctest::Contains("op my.op: expected an input below"),
                       millrace::IndexError);
}

namespace {

/// Runs an op whose inference says an array of f32 [?] and whose kernel gives `made`.
void run_slots(const millrace::Value& made) {
  millrace::OpDef def;
  def.name = "my.slots";
  def.inputs = {"X"};
  def.outputs = {"Out"};
  def.infer = [](millrace::InferContext& context) {
    context.result(VarType::array_of(DType::f32, millrace::DDim{millrace::DDim::unknown}, false));
  };
  def.prepare = [made](const millrace::PrepareContext&) -> millrace::OpKernel {
    return [made](millrace::OpContext& run) { run.set(0, made); };
  };
  auto ops = std::make_shared<millrace::OpRegistry>(*millrace::standard_ops());
  ops->add(std::move(def));
  Program program(std::move(ops));
  const Guard guard(program);
  output("n", ArrayVar::of(call1("my.slots", {input("x", VarType(DType::f32, {2}))})).size());
  run_fifo(millrace::run(program, {{"x", Tensor::from<float>({1, 2})}}));
}

}  // namespace

TEST_CASE("an array from a kernel from outside the tree has the type and the levels of slots that its inference says") {
  using millrace::TensorArray;
  const Tensor rows = Tensor::from<float>({1, 2});
  run_slots(TensorArray::unstack(rows.reshape({1, 2})));
  run_slots(TensorArray(1));
  const std::string where = "(op my.slots, output 'Out': expected array<f32[?]> as inferred)";
  const TensorArray deep = TensorArray::peel(LoDTensor(rows, LoD::from_lengths({{1}, {2}})));
  CHECK_THROWS_WITH_AS(run_slots(deep), doctest::Contains(where.c_str()), millrace::LoDError);
  CHECK_THROWS_WITH_AS(run_slots(TensorArray::unstack(Tensor::from<double>({1, 2}).reshape({1, 2}))), doctest::Contains(where.c_str()),
                       millrace::DTypeError);
  CHECK_THROWS_WITH_AS(run_slots(TensorArray::unstack(rows.reshape({1, 1, 2}))), doctest::Contains(where.c_str()), millrace::ShapeError);
  CHECK_THROWS_WITH_AS(run_slots(rows), doctest::Contains("op my.slots, output 'Out': expected array<f32[?]>"), millrace::ArgumentError);
}

TEST_CASE("what the inference of an op from outside refuses is named like any other") {
  Program program(with_axpy());
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {2}));
  CHECK_THROWS_WITH_AS(call("my.axpy", {x, constant(1)}, {{"a", 0.5}}),
                       doctest::Contains("block 0, op my.axpy: expected two of a kind, found 'x' of f32[2]"), ProgramError);
  CHECK_THROWS_WITH_AS(call("my.axpy", {x, x}), doctest::Contains("attribute 'a': expected one, found none"), ProgramError);
  CHECK_THROWS_WITH_AS(call("my.axpy", {x}), doctest::Contains("expected input Y, found none"), ProgramError);
}
