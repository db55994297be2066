// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/lists_to_arrays.h>

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/recurrence.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// h = tanh(h / 2 + x[step]) over the items of an axis of x, as a list gives them: what `for row in x.unbind(axis)` is in ONNX. The loop counts by `stride`
/// from `first`.
Program over_list(int axis, std::int64_t first = 0, std::int64_t stride = 1, bool gives_list = false) {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, axis == 0 ? DDim{DDim::unknown, 2, 3} : DDim{2, DDim::unknown, 3}));
  const Var list = call1("list_split", {x, constant(1)}, {{"axis", std::int64_t{axis}}, {"keepdims", false}});
  const Var n = call1("list_length", {list});
  const ArrayVar out(n, "out");
  Var step = constant(first), slot = constant(0), h = constant(Tensor::from<float>({0, 0, 0, 0, 0, 0}, {2, 3}));
  WhileLoop loop = while_loop({step, slot, h});
  {
    const auto frame = loop.frame();
    loop.break_if(greater_equal(slot, n));
    const Var next = tanh(h * 0.5f + call1("list_at", {list, step}));
    out.write(slot, next);
    h.update(next);
    step.update(step + constant(stride));
    slot.update(slot + constant(1));
  }
  output("y", out.stack());
  if (gives_list) output("items", list);
  return program;
}

bool has_op(const Program& program, const std::string& type) {
  return std::any_of(program.blocks().begin(), program.blocks().end(), [&](const Block& block) {
    return std::any_of(block.ops.begin(), block.ops.end(), [&](const Op& op) { return op.type == type; });
  });
}

}  // namespace

TEST_CASE("a list of items that a loop reads in turn becomes an array, and the loop fuses with the same bits") {
  Random random(3);
  for (const int axis : {0, 1})
    for (const std::int64_t steps : {0, 1, 7}) {
      INFO("axis ", axis, ", steps ", steps);
      Program program = over_list(axis);
      const Feeds feeds{{"x", random_tensor(random, axis == 0 ? DDim{steps, 2, 3} : DDim{2, steps, 3})}};
      const RunResult before = on_cpu(program, feeds);
      CHECK(before.fused_loops == 0);
      lists_to_arrays(program);
      CHECK_FALSE(has_op(program, "list_at"));
      const RunResult after = on_cpu(program, feeds);
      CHECK(bits(after) == bits(before));
      CHECK(after.fused_loops == (steps > 0 ? 1 : 0));
    }
}

TEST_CASE("a loop over such a list goes live") {
  Program program = over_list(0);
  CHECK_THROWS_AS(make_recurrence(program), UnsupportedError);
  lists_to_arrays(program);
  CHECK(make_recurrence(program).states.size() == 1);
}

TEST_CASE("a list that is read from its end, or that somebody else reads, stays one") {
  Random random(4);
  const Feeds feeds{{"x", random_tensor(random, DDim{4, 2, 3})}};
  for (Program program : {over_list(0, -1, -1), over_list(0, 0, 1, true)}) {
    lists_to_arrays(program);
    CHECK(has_op(program, "list_at"));
  }
  Program reversed = over_list(0, -1, -1);
  lists_to_arrays(reversed);
  CHECK(on_cpu(reversed, feeds)["y"].tensor().dims() == DDim{4, 2, 3});
}
