// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/op_def.h>

namespace millrace::ops {

/// The type of an array input. ProgramError when the input is no array.
const VarType& array_type(const InferContext& context, std::size_t input);
/// The type of an array input whose slots have a known type. ProgramError while nothing has been written and the array has no
/// declared type.
const VarType& slot_type(const InferContext& context, std::size_t input);
/// ProgramError unless the input is an order.
void expect_order(const InferContext& context, std::size_t input);

}  // namespace millrace::ops
