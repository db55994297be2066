// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::lowering {

/// Appends an op of block 0 that has no outputs yet to `made`, and gives the var of its first output, whose type is inferred.
inline VarId append_op(Program& program, Op op, std::vector<Op>& made) {
  const VarId out = program.add_var(op.type, program.infer(0, op)[0]);
  op.outputs = {out};
  made.push_back(std::move(op));
  return out;
}

}  // namespace millrace::lowering
