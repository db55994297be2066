// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/runtime/executor/op_context.h>
#include <millrace/runtime/lowering/vectorize.h>
#include <millrace/runtime/ops/internal/inference.h>
#include <millrace/runtime/ops/internal/rows.h>

namespace millrace::ops {

/// Levels of LoD of an input that must have at least one.
inline int expect_lod(const InferContext& context, std::size_t input) {
  const int levels = context.tensor(input).lod_depth;
  if (levels < 1) throw ProgramError("expected rows with LoD, found " + context.describe(input));
  return levels;
}

/// One number for each sequence of the last level, with the levels above as LoD.
inline VarType one_each(DType dtype, int levels) { return VarType(dtype, DDim{DDim::unknown, 1}, levels - 1); }
inline LoDTensor one_each(Tensor values, const LoD& lod) { return LoDTensor(std::move(values), lod.levels(0, lod.depth() - 1)); }

/// LoDError, naming both, when an input carries another LoD than input 0.
inline void check_same_lod(const OpContext& run, std::size_t input) {
  if (run.lod(input).empty() || run.lod(input) == run.lod(0)) return;
  throw LoDError("two inputs of different LoD: " + run.in(0).tensor().to_string() + " and " + run.in(input).tensor().to_string());
}

/// For ops that need all rows of a sequence: neither live rows nor many sequences as one.
inline void needs_whole_sequences(OpDef& def) {
  def.follow_rows = [](const InferContext&, const std::vector<int>&) -> std::vector<int> { refuse_rows("needs the whole sequence"); };
  def.vectorize = [](Vectorizer&, const Op& op) {
    throw UnsupportedError("op " + op.type + ": has no form for many sequences at one step: it works on whole sequences, with LoD");
  };
  def.passes_lod = false;
}

}  // namespace millrace::ops
