// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <millrace/runtime/program/op_registry.h>

using namespace millrace;

namespace {

/// The repository: where ctest says, else the folder above this one that holds the page.
std::filesystem::path repository() {
  if (const char* named = std::getenv("MILLRACE_SOURCE")) return named;
  std::filesystem::path at = std::filesystem::current_path();
  while (!std::filesystem::exists(at / "docs/ops.md") && at.has_relative_path()) at = at.parent_path();
  return at;
}

}  // namespace

TEST_CASE("the registry is one for all, and a copy of it takes ops from outside") {
  CHECK(standard_ops() == standard_ops());
  auto ops = std::make_shared<OpRegistry>(*standard_ops());
  OpDef twice;
  twice.name = "twice";
  twice.inputs = {"X"};
  twice.outputs = {"Out"};
  twice.infer = [](InferContext& context) { context.result(context.tensor(0)); };
  ops->add(twice);
  CHECK(ops->find("twice") != nullptr);
  CHECK(standard_ops()->find("twice") == nullptr);
  CHECK_THROWS_WITH_AS(ops->add(twice), doctest::Contains("'twice' is taken"), ProgramError);
  Program program(ops);
  const VarId x = program.add_input("x", VarType(DType::f32, {2}));
  CHECK(program.append(0, Op{"twice", {x}, {}, {}, {}}).size() == 1);
}

TEST_CASE("the page of ops names every op, and the inputs of each") {
  std::ifstream file(repository() / "docs/ops.md");
  REQUIRE(file.good());
  std::stringstream page;
  page << file.rdbuf();
  for (const std::string& name : standard_ops()->names()) {
    CAPTURE(name);
    std::string row;
    bool found = false;
    for (std::istringstream lines(page.str()); !found && std::getline(lines, row);)
      found = row.starts_with("|") && row.find("`" + name + "`") != std::string::npos;
    CHECK(found);
    for (const std::string& input : standard_ops()->at(name).inputs) {
      // "Bias?" is written "Bias? [4H]"; a table may say the shape between.
      const std::string word = input.substr(0, input.find_first_of("?."));
      CHECK_MESSAGE(row.find(word) != std::string::npos, input);
    }
  }
}
