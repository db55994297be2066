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

/// Whether packed weights are faster for so many images of so many places, by `units` of a group: the places of all images are fewer than 64, and fewer by
/// as much as the units leave lanes empty.
bool few_places(std::int64_t units, std::int64_t images, std::int64_t places);

/// The packed weights; f32 or f64 on host memory. None where the kernel has more taps than one, a stride or padding, or a group has few units.
std::optional<PointwiseWeights> pack_pointwise(const ConvDesc& desc, const Tensor& weights, StreamRef stream);

/// conv.h by such weights where places are few, else by those given: its bits and errors either way.
Tensor conv(const ConvDesc& desc, const Tensor& x, const PointwiseWeights& weights, const Tensor* bias, StreamRef stream,
            const ConvSteps& steps = {});

}  // namespace millrace
