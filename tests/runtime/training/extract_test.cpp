// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/runtime/training/fed_program.h>
#include <millrace/runtime/training/initialiser.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::training;

namespace {

/// Scores of each sequence, and beside them a sum that reads another input.
Program model() {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}, 1));
  const build::Var other = build::input("other input", VarType(DType::f32, {DDim::unknown, 2}));
  const LayerInit init(5);
  const layers::LstmResult lstm = layers::lstm({x}, {init.lstm("lstm", 3, 4)});
  const build::Var scores = layers::linear(lstm.h[0], init.linear("linear", 4, 2));
  build::output("scores", scores);
  build::output("rows", lstm.y);
  build::output("sum", build::sum(scores * other));
  return program;
}

Feeds feeds(bool other) {
  Random random(3);
  const LoD lod = LoD::from_lengths({{3, 0, 5}});
  Feeds made{{"x", LoDTensor(random_tensor(random, {8, 3}), lod)}};
  if (other) made["other input"] = random_tensor(random, {3, 2});
  return made;
}

}  // namespace

TEST_CASE("with its weights as inputs a program gives the same bits, and its loops are fused as before") {
  const Program program = model();
  const Program fed = with_fed_weights(program);
  check(fed);
  CHECK(fed.parameters().empty());
  const RunResult wanted = on_cpu(program, feeds(true));
  FedProgram compiled(fed);
  const RunResult found = compiled.run(weights_of(program), feeds(true));
  CHECK(bits(found) == bits(wanted));
  CHECK(found.fused_loops == wanted.fused_loops);
  CHECK(wanted.fused_loops == 1);
}

TEST_CASE("an extract holds what its outputs need and nothing else, with the weights that are given") {
  const Program program = model();
  const Program some = extract(program, {"scores"});
  check(some);
  REQUIRE(some.inputs().size() == 1);
  CHECK(some.outputs().size() == 1);
  const LoDTensor scores = on_cpu(program, feeds(true))["scores"];
  CHECK(on_cpu(some, feeds(false))["scores"].tensor().to_vector<float>() == scores.tensor().to_vector<float>());
  CHECK(extract(program, {"rows"}).parameters().size() == 3);  // the linear layer is gone
  CHECK(extract(program, {}).block(0).ops.empty());

  Tensors weights{{"linear_bias", Tensor::from<float>({100, 200})}};
  const std::vector<float> moved = on_cpu(extract(program, {"scores"}, weights), feeds(false))["scores"].tensor().to_vector<float>();
  const std::vector<float> bias = weights_of(program).at("linear_bias").to_vector<float>();
  for (std::size_t i = 0; i < moved.size(); ++i)
    CHECK(moved[i] - scores.tensor().to_vector<float>()[i] == doctest::Approx((i % 2 == 0 ? 100 : 200) - bias[i % 2]).epsilon(1e-4));
}

TEST_CASE("an output or a weight that is not there is refused by name") {
  const Program program = model();
  CHECK_THROWS_WITH_AS(extract(program, {"score"}), doctest::Contains("'score'"), ArgumentError);
  CHECK_THROWS_WITH_AS(extract(program, {"scores"}, {{"none", Tensor::from<float>({1})}}), doctest::Contains("'none'"), ArgumentError);
  CHECK_THROWS_AS(extract(program, {"scores"}, {{"linear_bias", Tensor::from<float>({1})}}), ShapeError);
  CHECK_THROWS_AS(extract(program, {"scores"}, {{"linear_bias", Tensor::from<double>({1, 2})}}), DTypeError);
}

TEST_CASE("two halves give the bits of the whole, and the second may run again without the first") {
  Program program = model();
  BackwardOptions options;
  const VarId scores = program.outputs()[0].var, rows = program.outputs()[1].var;
  const VarId of_scores = program.add_input("of scores", VarType(DType::f32, {DDim::unknown, 2}));
  const VarId of_rows = program.add_input("of rows", VarType(DType::f32, {DDim::unknown, 4}));
  options.seed = of_scores;
  options.more_seeds = {{rows, of_rows}};
  std::vector<std::string> gradients;
  for (const Gradient& each : append_backward(program, scores, options)) {
    gradients.push_back("gradient/" + program.var(each.var).name);
    program.add_output(gradients.back(), each.gradient);
  }
  REQUIRE(gradients.size() == 5);
  const Halves halves = split(program, {"scores", "rows"}, gradients);
  check(halves.first);
  check(halves.second);
  CHECK(halves.first.inputs().size() == 1);
  CHECK_FALSE(halves.handed.empty());
  Random random(4);
  const Feeds seeds{{"of scores", random_tensor(random, {3, 2})}, {"of rows", random_tensor(random, {8, 4})}};
  Feeds all = feeds(true);
  all.insert(seeds.begin(), seeds.end());
  const RunResult whole = on_cpu(program, all);
  const RunResult first = on_cpu(halves.first, feeds(false));
  CHECK(first["scores"].tensor().to_vector<float>() == whole["scores"].tensor().to_vector<float>());
  CHECK(first["rows"].tensor().to_vector<float>() == whole["rows"].tensor().to_vector<float>());
  for (int time = 0; time < 2; ++time) {
    Feeds rest;
    for (const Program::Port& port : halves.second.inputs())
      rest[port.name] = all.contains(port.name) ? all.at(port.name) : first.value(port.name);
    const RunResult second = on_cpu(halves.second, rest);
    for (const std::string& name : gradients) CHECK(second[name].tensor().to_vector<float>() == whole[name].tensor().to_vector<float>());
    CHECK(first.iterations + second.iterations == whole.iterations);
    CHECK(first.fused_loops + second.fused_loops == whole.fused_loops);
  }
}

TEST_CASE("a half whose outputs the other one makes takes them as they are") {
  const Program program = model();
  const Halves halves = split(program, {"scores", "rows"}, {"rows", "sum"});
  CHECK(halves.handed.size() == 2);
  for (const Op& op : halves.second.block(0).ops) CHECK(op.type != "while");
  const Halves apart = split(program, {}, {"sum"});
  CHECK(apart.handed.empty());
  CHECK(apart.first.block(0).ops.empty());
  CHECK_THROWS_WITH_AS(split(program, {"score"}, {}), doctest::Contains("'score'"), ArgumentError);
}
