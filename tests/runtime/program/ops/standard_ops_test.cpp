// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
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

/// The row whose first cell names the op, else one that names it elsewhere; empty: none.
std::string row_of(const std::string& page, const std::string& op) {
  std::string beside, row;
  for (std::istringstream lines(page); std::getline(lines, row);) {
    const std::size_t at = row.starts_with("|") ? row.find("`" + op + "`") : std::string::npos;
    if (at == std::string::npos) continue;
    if (at < row.find('|', 1)) return row;
    if (beside.empty()) beside = row;
  }
  return beside;
}

/// The third cell of a row, between separators.
std::string attributes_of(const std::string& row) {
  std::istringstream cells(row);
  std::string cell;
  for (int i = 0; i < 4; ++i) std::getline(cells, cell, '|');
  return cell;
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

TEST_CASE("an attribute that an op does not read is refused, and an op from outside that says nothing of them takes any") {
  auto ops = std::make_shared<OpRegistry>(*standard_ops());
  OpDef outside;
  outside.name = "outside";
  outside.inputs = {"X"};
  outside.outputs = {"Out"};
  outside.infer = [](InferContext& context) { context.result(context.tensor(0)); };
  ops->add(outside);
  outside.name = "described";
  outside.attributes = {"axis"};
  ops->add(outside);
  Program program(ops);
  const VarId x = program.add_input("x", VarType(DType::f32, {2, 3}));
  const auto append = [&](const char* type, const char* attribute) {
    program.append(0, Op{type, {x}, {}, {{attribute, std::int64_t{0}}}, {}});
  };
  CHECK_NOTHROW(append("softmax", "axis"));
  CHECK_THROWS_WITH_AS(append("softmax", "dim"), doctest::Contains("op softmax: expected the attributes axis, found 'dim'"), ProgramError);
  CHECK_THROWS_WITH_AS(append("relu", "axis"), doctest::Contains("op relu: expected no attributes, found 'axis'"), ProgramError);
  CHECK_NOTHROW(append("outside", "any"));
  CHECK_THROWS_WITH_AS(append("described", "any"), doctest::Contains("expected the attributes axis, found 'any'"), ProgramError);
  for (const std::string& name : standard_ops()->names()) CHECK_FALSE(standard_ops()->at(name).takes_attribute("..."));
}

TEST_CASE("the page of ops names every op, its inputs and its attributes") {
  std::ifstream file(repository() / "docs/ops.md");
  REQUIRE(file.good());
  std::stringstream page;
  page << file.rdbuf();
  for (const std::string& name : standard_ops()->names()) {
    CAPTURE(name);
    const std::string row = row_of(page.str(), name);
    CHECK(!row.empty());
    for (const std::string& input : standard_ops()->at(name).inputs) {
      // "Bias?" is written "Bias? [4H]"; a table may say the shape between.
      const std::string word = input.substr(0, input.find_first_of("?."));
      CHECK_MESSAGE(row.find(word) != std::string::npos, input);
    }
    for (const std::string& attribute : standard_ops()->at(name).attributes)
      CHECK_MESSAGE(std::regex_search(attributes_of(row), std::regex("\\b" + attribute + "\\b")), attribute);
  }
}
