// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <millrace/runtime/builder/var.h>
#include <millrace/tensor/tensor.h>

namespace millrace::layers {

/// Rows of `table` [V, C] by number: `ids`, i64 or i32, [..] gives [.., C]; a last axis of one element, as Fluid's ids [rows, 1] have, goes
/// away first. A number below −V or above V − 1 is an IndexError of the run; a negative one counts from the end, as ONNX's Gather has it.
/// The number `padding` gives zeros. Row by row: a LoD stays, and the result streams.
build::Var embedding(const build::Var& ids, const Tensor& table, std::optional<std::int64_t> padding = {},
                     const std::string& name = "embedding");

}  // namespace millrace::layers
