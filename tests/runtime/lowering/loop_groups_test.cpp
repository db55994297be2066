// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/loop_groups.h>

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/compiled_program.h>
#include <millrace/runtime/executor/executable.h>
#include <millrace/runtime/layers/lstm.h>
#include <support/random_lstm.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// As a run has it: layers hand their slots on.
Program stack_of(std::size_t layers) {
  Random random(1);
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
  std::vector<layers::LstmWeights> weights;
  while (weights.size() < layers) weights.push_back(random_lstm_weights(random, DType::f32, 4, 4));
  build::output("y", layers::lstm({x}, weights).y);
  return Executable(program, make_cpu_device()).compiled().program;
}

}  // namespace

TEST_CASE("the layers of a stack are a group, in the order in which they feed one another, and a loop alone is none") {
  CHECK(find_loop_groups(stack_of(1)).empty());
  const Program program = stack_of(3);
  const std::vector<LoopGroup> groups = find_loop_groups(program);
  REQUIRE(groups.size() == 1);
  REQUIRE(groups[0].size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(program.block(0).ops[groups[0][i]].type == "while");
    if (i > 0) CHECK(groups[0][i - 1] < groups[0][i]);
  }
}

TEST_CASE("an op that a loop of a group needs belongs to the first of the loops that do, and no loop does") {
  const Program program = stack_of(3);
  const LoopGroup group = find_loop_groups(program).at(0);
  const std::vector<std::set<std::size_t>> before = ops_before_each(program, group);
  REQUIRE(before.size() == 3);
  std::set<std::size_t> all;
  for (std::size_t i = 0; i < before.size(); ++i)
    for (const std::size_t place : before[i]) {
      const Op& op = program.block(0).ops[place];
      INFO("loop ", i, ": ", op.type);
      CHECK(op.type != "while");
      CHECK(place < group[i]);
      CHECK(all.insert(place).second);
      // The later layers alone need their first states and arrays; the rows of the input belong to the first one.
      if (i > 0) CHECK(op.type != "unpack");
    }
  CHECK(!before[0].empty());
  CHECK(!before[1].empty());
}
