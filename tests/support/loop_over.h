// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>

namespace millrace::testing {

/// `turns` turns of `body(step)`.
inline void loop_over(const build::Var& turns, const std::function<void(const build::Var&)>& body, build::LoopOptions options = {}) {
  build::Var step = build::constant(0);
  build::WhileLoop loop = build::while_loop({step}, options);
  const auto frame = loop.frame();
  loop.break_if(equal(step, turns));
  body(step);
  step.update(step + 1);
}

}  // namespace millrace::testing
