// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <millrace/kernels/conv.h>

namespace millrace::internal {

/// `steps` with operands as cpu/conv_steps.h takes them, for a result of these extents. Nothing where an operand has other extents. ArgumentError,
/// DTypeError and PlaceError, as kernels/conv.h says.
std::optional<ConvSteps> fitted_steps(const ConvSteps& steps, DType dtype, const DDim& dims, StreamRef stream);

}  // namespace millrace::internal
