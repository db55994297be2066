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
