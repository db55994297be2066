// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/kernels/conv.h>

namespace millrace::internal {

/// conv of kernels/conv.h behind its checks, to a result of extents `dims`. `packed`: the weights as kernels/unit_weights.h packs them, for units in the
/// lanes, or null.
Tensor run_conv(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* packed, const Tensor* bias, StreamRef stream,
                const std::shared_ptr<const ConvTaps>& taps, const ConvSteps& steps, const DDim& dims);

}  // namespace millrace::internal
