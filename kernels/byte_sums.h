// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Sums of (x − zero) over the last `axes` axes, at least one: f32, of whole numbers that are exact where each sum stays below 2^24, else rounded once. x u8 or i8; `keepdims`: the axes
/// stay, of extent 1. In host memory alone. ShapeError, DTypeError.
Tensor sum_bytes(const Tensor& x, std::int64_t zero, int axes, bool keepdims, StreamRef stream);

}  // namespace millrace
