// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/autodiff/internal/array_gradients.h>
#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Gradients of the vars around a loop that its backward makes.
struct LoopGradients {
  std::vector<std::pair<VarId, VarId>> tensors;         ///< var, gradient
  std::vector<std::pair<VarId, ArrayGradient>> arrays;  ///< array, gradient
};

/// Appends the backward of the recurrence over ragged rows whose body is block `body`: a loop over the same sequences from their last iteration
/// to their first, fed with values that the forward loop keeps (keep_values.h). The batch of the backward loop shrinks as that of the
/// forward loop does, because sequences stand end to end. Gradients of weights are computed behind the loop, each by one call of the op's rule
/// on the rows of all iterations: for a product that is dW = Xᵀ·dY.
///
/// `memory`: under `recompute` both loops go through runs of iterations where they can (runs_backward.h); elsewhere the forward loop keeps the states that an
/// iteration begins with, and the backward computes the rest of the iteration again. Under `truncate` there is a backward loop for each of ⌈k2 / k1⌉ phases, whose windows do not overlap: the gradients of the runs of a phase go in, and nothing
/// flows from the first row of a window to the row before it. Boots keep their gradients; runs begin with the first iteration of each sequence.
///
/// `arrays`: gradients of the arrays that the loop writes. UnsupportedError when the loop is no recurrence over ragged rows, or an op of it is
/// not row-wise. Changes `program` even when it throws: call it with a copy.
LoopGradients recurrence_backward(Program& program, const std::set<VarId>& active, int body, const ArrayGradients& arrays,
                                  const MemoryPolicy& memory);

}  // namespace millrace::autodiff
