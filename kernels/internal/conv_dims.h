// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/conv.h>

namespace millrace::internal {

/// Extents of the output of a convolution on host memory. ShapeError, DTypeError, ArgumentError or PlaceError, as kernels/conv.h says.
DDim conv_dims(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, StreamRef stream);

}  // namespace millrace::internal
