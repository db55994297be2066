// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The common extents of `a` and `b` by numpy's rule: aligned at the last axis, 1 stretches. ShapeError names both.
DDim broadcast_dims(const DDim& a, const DDim& b);

/// `x` seen with extents `dims` (stride 0 where it stretches): no work, no copy. ShapeError when `x` does not broadcast
/// to exactly `dims`.
Tensor broadcast_view(const Tensor& x, const DDim& dims);

/// That view as a row-major copy in the memory of `stream`.
Tensor broadcast_to(const Tensor& x, const DDim& dims, StreamRef stream);

/// ONNX Expand: broadcasts `x` and `dims` with each other.
Tensor expand(const Tensor& x, const DDim& dims, StreamRef stream);

/// Repeats `x` repeats[i] ≥ 0 times along axis i. ShapeError when the counts differ, ArgumentError for a negative one.
Tensor tile(const Tensor& x, const std::vector<std::int64_t>& repeats, StreamRef stream);

}  // namespace millrace
