// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>

namespace millrace::testing {

/// `iterations` iterations of `body(step)`.
inline void loop_over(const build::Var& iterations, const std::function<void(const build::Var&)>& body, build::LoopOptions options = {}) {
  build::Var step = build::constant(0);
  build::WhileLoop loop = build::while_loop({step}, options);
  const auto frame = loop.frame();
  loop.break_if(equal(step, iterations));
  body(step);
  step.update(step + 1);
}

}  // namespace millrace::testing
