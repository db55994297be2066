// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// ONNX LayerNormalization over the axes from `axis` to the last, for floats: with n elements each, sums in the order
/// of reduce.h,
///   mean = Σx / n; d = x − mean; variance = Σd² / n; y = d · (1 / √(variance + epsilon)); y·scale; + bias.
/// `scale` and `bias` broadcast to the normalised axes; a null bias is none. f16 and bf16 are computed in f32.
/// ShapeError names both shapes.
Tensor layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axis, double epsilon, StreamRef stream);

}  // namespace millrace
