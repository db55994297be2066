// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/ops/internal/sequences.h>

namespace millrace::ops {

/// One number for each sequence of the last level, with the levels above as LoD.
inline VarType one_each(DType dtype, int levels) { return VarType(dtype, DDim{DDim::unknown, 1}, levels - 1); }
inline LoDTensor one_each(Tensor values, const LoD& lod) { return LoDTensor(std::move(values), lod.levels(0, lod.depth() - 1)); }

/// LoDError, naming both, when an input carries another LoD than input 0.
inline void check_same_lod(const OpContext& run, std::size_t input) {
  if (run.lod(input).empty() || run.lod(input) == run.lod(0)) return;
  throw LoDError("two inputs of different LoD: " + run.in(0).tensor().to_string() + " and " + run.in(input).tensor().to_string());
}

/// For ops that need all rows of a sequence: live rows are refused.
inline void needs_whole_sequences(OpDef& def) {
  def.follow_rows = [count = def.outputs.size()](const InferContext&, const std::vector<int>& axes) {
    if (std::any_of(axes.begin(), axes.end(), [](int axis) { return axis >= 0; })) refuse_rows("needs the whole sequence");
    return std::vector<int>(count, -1);
  };
  def.passes_lod = false;
}

}  // namespace millrace::ops
