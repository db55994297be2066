// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// A new axis of `depth` elements put in at `axis` (−1 = last): `on` where it equals `index` (i64 or i32), `off`
/// elsewhere. Negative indices count from the end; those outside [−depth, depth) give `off` alone, as in ONNX.
/// ArgumentError for a negative depth.
Tensor one_hot(const Tensor& index, std::int64_t depth, int axis, double off, double on, DType dtype, StreamRef stream);

}  // namespace millrace
