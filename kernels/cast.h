// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// out = x in the dtype of `out`; same extents (ShapeError names both).
///
/// Float to float rounds to nearest, ties to even (f64 to f16 and bf16 goes through f32), integers to floats likewise, once. Float to integer truncates
/// toward zero, clamps to the range, and takes NaN to 0. Integer to integer keeps the low bits. To bool: `!= 0`, NaN is
/// true. From bool: 0 or 1.
void cast(const Tensor& x, Tensor& out, StreamRef stream);

/// The cast into new memory of `stream`; `x` itself when it has that dtype already.
Tensor cast(const Tensor& x, DType dtype, StreamRef stream);

}  // namespace millrace
