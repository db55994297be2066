// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/last_state.h>

#include <doctest/doctest.h>

#include <functional>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/program_runs.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Next = std::function<Var(const Var& state, const Var& now)>;

/// A loop over the first step carries `next` of a state in the batch's order. A second loop over all steps begins with the last state of the first.
Program two_loops(const Next& next) {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1}, 1)), b = input("b", VarType(DType::f32, {DDim::unknown, 1}));
  const auto [steps, order] = unpack(x, 0, true);
  const Var n = steps.size();
  Var state = call1("reorder", {b, order.var()}), step = 0;
  {
    WhileLoop loop = while_loop({step, state});
    const auto frame = loop.frame();
    loop.break_if(equal(step, Var(1)));
    state.update(next(state, steps.read(step)));
    step.update(step + 1);
  }
  Var behind = identity(state), at = 0;
  const ArrayVar out(n, order, "out");
  {
    WhileLoop loop = while_loop({at, behind});
    const auto frame = loop.frame();
    loop.break_if(equal(at, n));
    const Var now = steps.read(at), sum = shrink(behind, now) + now;
    out.write(at, sum);
    behind.update(sum);
    at.update(at + 1);
  }
  output("y", pack(out, 0, order));
  return program;
}

const Feeds feeds{{"x", Value(LoDTensor(Tensor::from<float>({1, 2, 10, 20, 30, 40, 50}, {7, 1}), LoD::from_lengths({{2, 5}})))},
                  {"b", Value(Tensor::from<float>({100, 1000}, {2, 1}))}};

}  // namespace

TEST_CASE("a state that an iteration computed has no order behind a loop, fused or not") {
  const Program program = two_loops([](const Var& state, const Var& now) { return shrink(state, now) + now; });
  CHECK(compare(program, feeds) == 2);
  CHECK(on_cpu(program, feeds)["y"].tensor().to_vector<float>() == std::vector<float>{1011, 1013, 111, 131, 161, 201, 251});
}

TEST_CASE("a slot or a state that an iteration hands on keeps its order behind a loop, fused or not") {
  CHECK(compare(two_loops([](const Var&, const Var& now) { return identity(now); }), feeds) > 0);
  CHECK(compare(two_loops([](const Var& state, const Var&) { return identity(state); }), feeds) > 0);
  CHECK(compare(two_loops([](const Var& state, const Var& now) { return shrink(state, now); }), feeds) > 0);
}
