// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

struct LayerNormGradient {
  Tensor x;     ///< the gradient of x, with its extents
  Tensor rows;  ///< g·x̂, with the extents of x: the sum over the rows is the gradient of scale
};

/// The gradients of layer_norm (layer_norm.h), for f32 and f64. `g`, with the extents of x, is the gradient of its result. With n elements along
/// the axes from `axis` to the last, x̂ = d · (1 / √(variance + epsilon)) as there, f = 1 / √(variance + epsilon), and s = g·scale:
///   rows = g·x̂;  x = f · ((s − Σs / n) − x̂ · (Σ(s·x̂) / n)).
/// Each of the four sums has the 16 chains of layer_norm. The same on every instruction set, and for one row as for many.
/// `scale` broadcasts to the normalised axes. DTypeError for other dtypes, ShapeError names both shapes.
LayerNormGradient layer_norm_gradient(const Tensor& x, const Tensor& scale, const Tensor& g, int axis, double epsilon, StreamRef stream);

}  // namespace millrace
