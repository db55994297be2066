// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_def.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/sequence_plan.h>

namespace millrace::ops {

/// The elements that an op reads on the host (`OpDef::host_inputs`), where its stream can read it too.
inline Tensor on_stream(const Tensor& x, StreamRef stream) { return x.place() == stream.place() ? x : clone(x, stream); }

/// Helpers of the ops on whole sequences. They say themselves what LoD their outputs have (`OpDef::passes_lod` is false).

/// A definition with `infer` and `kernel`, whose outputs need the whole sequence: live rows are refused with `reason`.
OpDef sequence_op(const char* name, std::vector<std::string> inputs, std::vector<std::string> outputs, void (*infer)(InferContext&),
                  OpKernel (*prepare)(const PrepareContext&), const char* reason, std::vector<std::string> attributes = {});

/// Levels of LoD of an input that must have some.
int expect_lod(const InferContext& context, std::size_t input);
/// The attribute `name` (default −1, the innermost) as a level of an input with LoD, counted from 0.
int expect_level(const InferContext& context, std::size_t input, const char* name = "level");
/// The same attribute, when the op runs.
int level_of(const Attributes& attributes, const char* name = "level");

/// The type of an input whose rows become another number, with `levels` of LoD.
VarType other_rows(const InferContext& context, std::size_t input, int levels);
/// The type of an input with `levels` of LoD.
VarType same_rows(const InferContext& context, std::size_t input, int levels);

/// One column of integers, [N] or [N, 1].
void expect_column(const InferContext& context, std::size_t input);
void expect_index_column(const InferContext& context, std::size_t input);

/// The extents of [T, …] with `leading` in place of the rows.
DDim with_leading_dims(const DDim& rows, const std::vector<std::int64_t>& leading);

/// A list of i64 in the memory of `stream`.
Tensor list_on(const std::vector<std::int64_t>& values, StreamRef stream);

}  // namespace millrace::ops
