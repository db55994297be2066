// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/fold_constants.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

using namespace millrace;

namespace {

std::size_t ops_after_folding(Program& program) {
  fold_constants(program);
  std::size_t count = 0;
  for (const Op& op : program.block(0).ops) count += op.type != "constant";
  return count;
}

}  // namespace

TEST_CASE("what weights and literals make is computed once, and what an input takes part in is not") {
  Program program;
  const build::Guard guard(program);
  const build::Var w = build::parameter("w", Tensor::from<float>({1, 2}));
  const build::Var twice = w * 2.0f;
  const build::Var x = build::input("x", VarType(DType::f32, DDim{2}));
  build::output("y", twice + x);
  CHECK(ops_after_folding(program) == 1);
  REQUIRE(program.constant(twice.id()) != nullptr);
  CHECK(program.constant(twice.id())->to_vector<float>() == std::vector<float>{2, 4});
}

TEST_CASE("an op that fails, or that would take very much memory, stays for the run") {
  Program program;
  const build::Guard guard(program);
  const build::Var huge = build::call1("constant_of_shape", {build::constant(Tensor::from<std::int64_t>({1'000'000'000}))});
  build::output("sum", build::sum(huge));
  const build::Var endless = build::call1("range", {build::constant(0.0), build::constant(1e30), build::constant(1.0)});
  build::output("many", build::sum(endless));
  CHECK(ops_after_folding(program) == 4);
}
