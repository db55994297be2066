// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// A convolution over one or more axes, ONNX Conv with weights [out_channels, in_channels / groups, K1, K2, …]:
///   y[n, o, l1, l2, …] = Σ_{c, t1, t2, …} w[o, c, t1, t2, …] · x[n, g·in/groups + c, l1·stride1 + t1·dilation1 − before1, …] (+ bias[o]),
/// g the group of o. The sum is the dot product of gemm.h: k runs over c, then t1, then t2, …; an element of the padding is a zero that takes part
/// like any other. With one axis the bits are those of conv1d.h.
struct ConvDesc {
  struct Axis {
    std::int64_t stride = 1;
    std::int64_t dilation = 1;
    std::int64_t before = 0;  ///< zeros in front
    std::int64_t after = 0;
  };
  std::vector<Axis> axes;
  std::int64_t groups = 1;
  bool relu = false;  ///< y < 0 becomes 0, with the bits of `Unary::relu`

  /// (extent + pads − dilation·(kernel − 1) − 1) / stride + 1, or 0 where the kernel is longer.
  static std::int64_t out_extent(const Axis& axis, std::int64_t extent, std::int64_t kernel);
};

/// The taps that matter, where many weights are zero in a regular way, as those of a transposed convolution's phases are: runs of units of one group, with
/// the k at which they have weights.
struct ConvTaps {
  struct Part {
    std::int64_t units = 0;
    std::vector<std::int64_t> k;  ///< ascending; all channels have the same taps
    Tensor weights;               ///< [units, k]
  };
  std::vector<Part> parts;  ///< of all groups, group by group
};
/// Null where that would save little. For weights that are read often.
std::shared_ptr<const ConvTaps> find_taps(const ConvDesc& desc, const Tensor& weights);

/// Arithmetic on the results of a convolution, as kernels/arithmetic.h has it, behind bias and relu.
struct ConvSteps {
  std::vector<ArithmeticStep> steps;
  std::vector<std::optional<Tensor>> operands;  ///< of any strides; none: the result of the convolution
};

/// The arithmetic behind a convolution that has run without it: `arithmetic` of the result `made`, with its broadcasting and errors.
Tensor take_steps(const ConvSteps& steps, const Tensor& made, StreamRef stream);

/// x [N, in_channels, L1, …] of any strides, weights of as many axes, bias [out_channels] or null; of one dtype on host memory. f16 and bf16 are computed
/// in f32 and rounded once, ahead of relu and `steps`; weights and bias may be in f32 there, which saves a conversion. Bits depend neither on N
/// nor on threads, nor on `taps`, those of these weights or null, but for the sign of a zero: an x with an element that is not finite meets all of them. `steps` have the bits of
/// `arithmetic` of the result; operands of one element, of one for each unit, or of the extents of the result are met while results are in a cache. ShapeError,
/// DTypeError, ArgumentError name both sides; PlaceError for other memory.
Tensor conv(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, StreamRef stream,
            const std::shared_ptr<const ConvTaps>& taps = nullptr, const ConvSteps& steps = {});

}  // namespace millrace
