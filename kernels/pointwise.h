// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <millrace/kernels/conv.h>
#include <millrace/kernels/conv1d.h>

namespace millrace {

/// Known weights of a convolution whose kernel has one tap, in the order of conv1d.h: units in the lanes. Few places leave vectors of places empty, and
/// meet each weight so seldom that weights far apart are late.
struct PointwiseWeights {
  Conv1dPlan plan;
  PackedMatrix packed;
  Tensor weights;  ///< as they were given
};

/// From so many places of an image on vectors of places are faster.
inline constexpr std::int64_t pointwise_places = 64;

/// The packed weights; f32 or f64 on host memory. None where the kernel has more taps than one, a stride or padding, or a group has few units.
std::optional<PointwiseWeights> pack_pointwise(const ConvDesc& desc, const Tensor& weights, StreamRef stream);

/// conv.h by such weights, with its bits and errors.
Tensor conv(const ConvDesc& desc, const Tensor& x, const PointwiseWeights& weights, const Tensor* bias, StreamRef stream,
            const ConvSteps& steps = {});

}  // namespace millrace
