// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/binary.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Maxima, minima or sums over windows of the last axes of a tensor, one axis after the other:
///   y[…, l] = fold_{t < kernel} x[…, l·stride + t·dilation − before], from t = 0 on, first along the first of `axes`, then along the next.
/// A fold is `Binary::maximum`, `minimum` or `add` of what was folded before, left, and the next element, right, with the bits of binary.h: a NaN wins
/// in a maximum. An element of the padding is −∞ for a maximum, +∞ for a minimum and 0 for a sum, and takes part like any other.
struct PoolDesc {
  struct Axis {
    std::int64_t kernel = 1;
    std::int64_t stride = 1;
    std::int64_t dilation = 1;
    std::int64_t before = 0;  ///< elements of padding in front
    std::int64_t after = 0;
  };
  Binary fold = Binary::maximum;  ///< maximum, minimum or add
  std::vector<Axis> axes;         ///< one or more: the last axes of x

  /// (extent + before + after − dilation·(kernel − 1) − 1) / stride + 1, or 0 where the kernel is longer.
  static std::int64_t out_extent(const Axis& axis, std::int64_t extent);
  /// An element of the padding.
  double padding() const;
};

/// x [.., L1, …] of any strides, floats in host memory, f32 or f64 for a sum, to [.., out_extent of L1, …]. Bits depend neither on the other rows nor on threads.
/// ShapeError, DTypeError, ArgumentError name both sides; UnsupportedError for a place without kernels.
Tensor pool(const PoolDesc& desc, const Tensor& x, StreamRef stream);

}  // namespace millrace
