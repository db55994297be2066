// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// f32 numbers rounded to 8 bits and back, as ONNX DynamicQuantizeLinear and DequantizeLinear do it. All elements of the axes from `axis` (0 … rank) on
/// share one scale:
///
///   high = max(0, x…); low = min(0, x…); scale = (high − low) / 255, 1 where both are 0; zero = round(clip(−low / scale, 0, 255))
///   out = (clip(round(x / scale) + zero, 0, 255) − zero) · scale
///
/// each step rounded once in f32, `round` to nearest, ties to even. A NaN or an infinity makes NaN of all.
Tensor round_to_bytes(const Tensor& x, int axis, StreamRef stream);
/// The same for `count` elements in host memory; `out` may be `x`.
void round_to_bytes(const float* x, std::int64_t count, float* out);

}  // namespace millrace
