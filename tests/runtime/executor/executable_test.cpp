// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/executable.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/executor/var_scope.h>
#include <millrace/runtime/program/text.h>
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

namespace {

/// The sum of the slots of x, by a loop that a backend takes.
constexpr const char* summed = R"(millrace 1 "summed"
input "x" = x: f32[?, ?, 2]
input "h" = h: f32[?, 2]
block { idx: 0 parent_idx: -1
  steps: array<f32[?, 2]> = tensor_array_unstack(X=x) {axis=0}
  n: i64[] = tensor_array_size(Array=steps)
  sums: array<f32[?, 2]> = tensor_array(Size=n) {dtype=f32, shape=ints[-1, 2], name="sums"}
  zero: i64[] = constant() {value=i64[](0)}
  done: i64[], last: f32[?, 2] = while(Carried=[zero, h]) {sub_block=@1, max_trips=-1, parallel_iterations=8}
  y: f32[?, ?, 2] = tensor_array_stack(Array=sums) {axis=0}
}
block { idx: 1 parent_idx: 0
  params step: i64[], before: f32[?, 2]
  end: bool[] = equal(A=step, B=n)
  break_if(Condition=end, Carried=[step, before])
  row: f32[?, 2] = tensor_array_read(Array=steps, Index=step)
  sum: f32[?, 2] = add(A=before, B=row)
  tensor_array_write(Array=sums, Index=step, X=sum) {share=true}
  one: i64[] = constant() {value=i64[](1)}
  next: i64[] = add(A=step, B=one)
  results next, sum
}
output "y" = y
)";

}  // namespace

TEST_CASE("a run whose ops need not wait is one piece of work of its executor") {
  const Executable executable(parse_program(summed, {}));
  const Feeds fed{{"x", Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 1, 2})}, {"h", Tensor::from<float>({0, 0}).reshape({1, 2})}};
  const auto pieces = [&](Backend backend) {
    RunOptions options;
    options.backend = backend;
    SeededExecutor executor(1, SeededExecutor::Policy::fifo);
    auto running = start_run(executor, run(executable, fed, options));
    int count = 0;
    while (executor.step()) ++count;
    const RunResult result = running.get();
    CHECK(result["y"].tensor().to_vector<float>() == std::vector<float>{1, 2, 4, 6, 9, 12});
    return count;
  };
  CHECK(pieces(Backend::automatic) == 1);
  CHECK(pieces(Backend::interpreted) > 1);
}

TEST_CASE("a scope that a run has left holds nothing, and one that somebody holds stays with its holder") {
  ScopePool pool(2);
  const auto count = std::make_shared<VarScope::Count>();
  std::shared_ptr<VarScope> scope = pool.take(count);
  const VarScope* const first = scope.get();
  const Tensor value = Tensor::scalar(1.0f);
  const long holders = value.storage().use_count();
  scope->set(1, Value(value));
  pool.give_back(std::move(scope));
  CHECK(value.storage().use_count() == holders);
  scope = pool.take(count);
  CHECK(scope.get() == first);
  CHECK_FALSE(scope->has(1));
  const std::shared_ptr<VarScope> held = scope;
  held->set(0, Value(value));
  pool.give_back(std::move(scope));
  CHECK(held->has(0));
  CHECK(pool.take(count) != held);
}
