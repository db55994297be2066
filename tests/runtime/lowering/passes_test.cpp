// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/passes.h>

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include "runtime/loops/cpu_fused/fused_cells.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

std::int64_t count(const passes::Phase& phase, const std::string& type) {
  const auto& ops = phase.program.block(0).ops;
  return std::count_if(ops.begin(), ops.end(), [&](const Op& op) { return op.type == type; });
}

/// An iteration with a step input of 4 numbers and a state; `stretched`: what it adds to the state has an element for each pair of them.
passes::Phases divided(bool stretched) {
  Program step;
  const Guard guard(step);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 4}));
  const Var state = input("state", VarType(DType::f32, {DDim::unknown, 4, 4}));
  const Var column = reshape(x, {0, 4, 1}), line = reshape(x, {0, 1, 4});
  const Var next = state + (stretched ? column * line : tanh(column) * column);
  output("y", next);
  output("next", next);
  return passes::split(step, 1, 1, 1);
}

}  // namespace

TEST_CASE("products of vectors stay in the iteration, and what is no larger than they are is computed ahead of it") {
  const passes::Phases pairs = divided(true), alone = divided(false);
  CHECK(count(pairs.step, "mul") == 1);
  CHECK(pairs.ahead.program.outputs().empty());
  CHECK(count(alone.step, "mul") == 0);
  CHECK(count(alone.ahead, "mul") == 1);
}
