// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>

namespace millrace::testing {

/// The canonical listing, appended to the program that is being built: h' = sigmoid(h·U + x·W) over the sequences of x, from `boot_state`; all h'
/// as x has its rows. (Word for word it stands in builder/listing_test.cpp.)
inline build::Var listing(const build::Var& x, const build::Var& boot_state, const build::Var& U, const build::Var& W, bool sorted = true) {
  const auto [steps, order] = build::unpack(x, 0, sorted);
  const build::Var n = steps.size();
  const build::TensorArray states(n, order, "states"), outputs(n, order, "outputs");
  build::Var step = build::constant(0);
  auto loop = build::while_loop({step});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const build::Var step_input = steps.read(step);
    const build::Var pre_state = shrink(states.read(step - 1, boot_state), step_input);
    const build::Var state = sigmoid(matmul(pre_state, U) + matmul(step_input, W));
    states.write(step, state);
    outputs.write(step, state, share);
    step.update(step + 1);
  }
  return build::pack(outputs, 0, order);
}

}  // namespace millrace::testing
