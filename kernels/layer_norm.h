// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// ONNX LayerNormalization over the axes from `axis` to the last, for floats: with n elements each,
///   mean = Σx / n; d = x − mean; variance = Σd² / n; y = d · (1 / √(variance + epsilon)); y·scale; + bias.
/// Each sum has 16 chains: element i is added to chain i mod 16, from +0, ascending; then chain j takes chain j + 8, of the first eight j
/// takes j + 4, then j + 2, then j + 1. The same on every instruction set, and for one row as for many.
/// `scale` and `bias` broadcast to the normalised axes; a null bias is none. f16 and bf16 are computed in f32.
/// ShapeError names both shapes.
Tensor layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axis, double epsilon, StreamRef stream);

}  // namespace millrace
