// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/op_registry.h>

#include <doctest/doctest.h>

#include <algorithm>

using namespace millrace;

namespace {

OpDef op(const std::string& name, std::vector<std::string> inputs = {}) {
  OpDef def;
  def.name = name;
  def.inputs = std::move(inputs);
  def.infer = [](InferContext&) {};
  return def;
}

}  // namespace

TEST_CASE("a copy of the standard ops takes more, and the standard ones stay as they were") {
  OpRegistry ops = *standard_ops();
  const std::size_t before = ops.names().size();
  ops.add(op("my.op", {"X", "B?", "Xs..."}));
  CHECK(ops.names().size() == before + 1);
  CHECK(ops.at("my.op").inputs.size() == 3);
  CHECK(ops.find("relu") != nullptr);
  CHECK(standard_ops()->find("my.op") == nullptr);
  const std::vector<std::string> names = ops.names();
  CHECK(std::is_sorted(names.begin(), names.end()));
}

TEST_CASE("an op that is not registered is an error that names it") {
  CHECK_THROWS_WITH_AS(standard_ops()->at("no_such_op"), "op registry: expected a registered op, found 'no_such_op'", ProgramError);
}

TEST_CASE("an op whose name is taken, or that has no name or no inference, is refused") {
  OpRegistry ops;
  ops.add(op("a"));
  CHECK_THROWS_WITH_AS(ops.add(op("a")), "op registry: the name 'a' is taken", ProgramError);
  CHECK_THROWS_WITH_AS(ops.add(op("a b\n")), "op registry: expected a name of letters, digits and _ . /, found 'a b?'", ProgramError);
  CHECK_THROWS_AS(ops.add(op("")), ProgramError);
  OpDef silent = op("b");
  silent.infer = nullptr;
  CHECK_THROWS_WITH_AS(ops.add(silent), doctest::Contains("a name and an inference"), ProgramError);
}

TEST_CASE("names that could not stand in a program's text are refused") {
  OpRegistry ops;
  for (const char* name : {"two words", "a-b", "1st", "params", "results", "_", "é"}) CHECK_THROWS_AS(ops.add(op(name)), ProgramError);
  CHECK_THROWS_WITH_AS(ops.add(op("a", {"X", "X"})), doctest::Contains("found 'X'"), ProgramError);
  CHECK_THROWS_WITH_AS(ops.add(op("a", {"X", "X?"})), doctest::Contains("found 'X?'"), ProgramError);
  CHECK_THROWS_WITH_AS(ops.add(op("a", {"Xs...", "Y"})), doctest::Contains("only the last of them with '...'"), ProgramError);
  CHECK_THROWS_AS(ops.add(op("a", {"two words"})), ProgramError);
  CHECK(ops.names().empty());
}

TEST_CASE("traits of an op are set by its name, and those of the standard ops stay as they were") {
  OpRegistry ops = *standard_ops();
  ops.add(op("my.product"));
  CHECK_FALSE(ops.at("my.product").traits.product);
  ops.set_traits("my.product", {.product = true});
  CHECK(ops.at("my.product").traits.product);
  ops.set_traits("matmul", {});
  CHECK(standard_ops()->at("matmul").traits.product);
  CHECK(standard_ops()->at("is_nan").traits.comparison == OpTraits::Comparison::none);
  CHECK_THROWS_WITH_AS(ops.set_traits("my.other", {}), "op registry: expected a registered op, found 'my.other'", ProgramError);
}

TEST_CASE("an op that forwards its input has an output of the same type but for the LoD, and one that compares gives bool") {
  for (const std::string& name : standard_ops()->names()) {
    const OpTraits& traits = standard_ops()->at(name).traits;
    if (!traits.forwards && traits.comparison == OpTraits::Comparison::none) continue;
    INFO(name);
    Program program;
    const std::size_t inputs = traits.forwards ? 1 : 2;
    std::vector<VarId> vars;
    for (std::size_t i = 0; i < inputs; ++i)
      vars.push_back(program.add_input("x" + std::to_string(i), VarType(DType::f32, {DDim::unknown, 3}, traits.forwards ? 1 : 0)));
    const VarId made = program.append(0, {name, vars, {}, {}, {}}).at(0);
    CHECK(program.var(made).type.dtype == (traits.forwards ? DType::f32 : DType::boolean));
    CHECK(*program.var(made).type.shape == DDim{DDim::unknown, 3});
  }
}
