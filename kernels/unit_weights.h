// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <millrace/kernels/conv.h>

namespace millrace {

/// Known weights of a convolution in the order of its k, for units in the lanes. Few places leave vectors of places empty, and meet each weight so seldom
/// that weights far apart are late.
struct UnitWeights {
  Tensor packed;   ///< along one axis, as conv1d.h packs them
  Tensor weights;  ///< in row-major order, of the packed dtype
};

/// Whether packed weights are faster for so many images of so many places, by `units` of a group: the places of all images are at most 64, and fewer by
/// as much as the units leave lanes empty.
bool few_places(std::int64_t units, std::int64_t images, std::int64_t places);

/// The packed weights; f32 or f64 on host memory. None where a group has few units or the convolution is depthwise.
std::optional<UnitWeights> pack_units(const ConvDesc& desc, const Tensor& weights, StreamRef stream);

/// conv.h by such weights (of f32 for x of f16 and bf16) where places are few, else by those given: its bits and errors either way.
Tensor conv(const ConvDesc& desc, const Tensor& x, const UnitWeights& weights, const Tensor* bias, StreamRef stream,
            const ConvSteps& steps = {});

}  // namespace millrace
