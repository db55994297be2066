// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/executable.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <support/drive.h>

using namespace millrace;

namespace {

Program doubled() {
  Program program;
  const build::Guard guard(program);
  build::output("y", build::input("x", VarType(DType::f32, {})) * 2.0f);
  return program;
}

const Feeds feeds{{"x", Tensor::scalar(3.0f)}};

}  // namespace

TEST_CASE("an executable that was moved from says so in each member and in a run") {
  Executable moved(doubled());
  Executable executable = std::move(moved);
  const char* const why = "executable: expected a compiled program, found one that was moved from";
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_THROWS_WITH_AS(moved.program(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.device(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.loop_groups(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(testing::run_fifo(run(moved, feeds)), why, ArgumentError);
  // NOLINTEND(bugprone-use-after-move)
  moved = std::move(executable);
  CHECK(testing::run_fifo(run(moved, feeds))["y"].tensor().item() == 6);
}

TEST_CASE("a program that was moved from is refused by its executable and by a run") {
  Program moved = doubled();
  const Program kept = std::move(moved);
  const char* const why = "program: expected a program, found one that was moved from";
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_THROWS_WITH_AS(Executable{moved}, why, ProgramError);
  CHECK_THROWS_WITH_AS(testing::run_fifo(run(moved, feeds)), why, ProgramError);
  // NOLINTEND(bugprone-use-after-move)
}
