// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/loop_form.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>

#include "runtime/loops/cpu_fused/fused_cells.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

/// The states of a dense loop that its program reads behind it.
enum class Reads { last, last_and_first, all };

/// h := tanh(x + h) over a dense batch of 2 features.
Program dense(Reads reads, bool reverse) {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, 2}));
  StaticRNN rnn({.reverse = reverse});
  Var memory;
  {
    const auto block = rnn.block();
    const Var row = rnn.step_input(x);
    memory = rnn.memory(DType::f32, {2});
    const Var next = tanh(row + memory);
    rnn.update_memory(memory, next);
    rnn.output(next + next);
    if (reads == Reads::all) rnn.output(next);
  }
  output("y", rnn.outputs()[0]);
  output("last", rnn.last(memory));
  if (reads == Reads::all) output("all", rnn.outputs()[1]);
  if (reads == Reads::last_and_first)
    for (const Op& op : program.block(0).ops)
      if (op.type == "tensor_array" && op.attributes.get_or("name", std::string()).find("memory") == 0) {
        output("first", ArrayVar::of(Var::of(op.outputs[0])).read(constant(Tensor::from<std::int64_t>({0}).reshape(DDim{}))));
        break;
      }
  return program;
}

LoopForm form_of(const Program& program) {
  for (const Op& op : program.block(0).ops)
    if (op.type == "while") return find_loop_form(program, 0, op);
  throw Error("no loop");
}

std::size_t kept_by_the_last_slot_alone(const Program& program) {
  std::size_t count = 0;
  for (const LoopForm::Output& each : form_of(program).outputs) count += each.last_alone ? 1U : 0U;
  return count;
}

}  // namespace

TEST_CASE("an array of states of which the last slot alone is read behind the loop is known, and any other reader is seen") {
  for (const bool reverse : {false, true}) {
    CHECK(kept_by_the_last_slot_alone(dense(Reads::last, reverse)) == 1);
    CHECK(kept_by_the_last_slot_alone(dense(Reads::last_and_first, reverse)) == 0);
  }
}

TEST_CASE("a fused loop that keeps the last of its states alone gives what its iterations give") {
  Random random(1);
  for (const Reads reads : {Reads::last, Reads::last_and_first, Reads::all})
    for (const bool reverse : {false, true})
      for (const std::int64_t steps : {1, 2, 7}) {
        INFO("reads ", static_cast<int>(reads), ", reverse ", reverse, ", steps ", steps);
        CHECK(compare(dense(reads, reverse), {{"x", random_tensor(random, {steps, 3, 2})}}) == 1);
      }
}
