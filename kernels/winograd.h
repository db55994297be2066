// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <millrace/kernels/conv.h>

namespace millrace {

/// Weights of a convolution along two axes with three taps along the first, [M, C, 3, K], transformed for rows of the output in fours: Winograd's minimal
/// filtering F(4, 3) along that axis. It multiplies half as often as conv.h and rounds otherwise: errors, relative to the largest element that a group
/// of four rows sees, are some times those of a dot product. (Lavin, Gray: Fast Algorithms for Convolutional Neural Networks, 2015)
struct WinogradWeights {
  Tensor transformed;  ///< [6, M, C·K]
  Tensor weights;      ///< as they were given
};

/// Whether it pays for weights of these extents: f32, one group, strides 1, no dilation along the first axis, and channels enough.
bool fits_winograd(const ConvDesc& desc, DType dtype, const DDim& weights);

/// The transformed weights. The result is empty where `fits_winograd` is false or a weight is beyond 2^60.
std::optional<WinogradWeights> transform_winograd(const ConvDesc& desc, const Tensor& weights);

/// conv.h by such weights; x of f32, f16 or bf16 on host memory. Images of fewer than three rows of output, and those with elements beyond 2^60, infinite or NaN, go
/// through conv.h. Bits depend neither on N nor on threads, nor on a row's width.
Tensor conv(const ConvDesc& desc, const Tensor& x, const WinogradWeights& weights, const Tensor* bias, StreamRef stream,
            const ConvSteps& steps = {});

}  // namespace millrace
