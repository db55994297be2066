// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Runs one op of a program on host tensors (null: an input that is absent) and gives its outputs. For ops that have a kernel.
std::vector<Tensor> evaluate_op(const Program& program, const Op& op, const std::vector<const Tensor*>& inputs);

/// Computes constants once: every pure op whose inputs are weights or literals becomes a literal, so that its readers may
/// pack it. Bits are those of the run. An op that fails, or that takes more than 256 MiB, is left as it is for the run.
void fold_constants(Program& program);

}  // namespace millrace
