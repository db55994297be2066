// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// A row-major copy whose axis i is axis axes[i] of `x`. (`x.permute(axes)` is the same as a view.) ShapeError,
/// IndexError.
Tensor transpose(const Tensor& x, const std::vector<int>& axes, StreamRef stream);

}  // namespace millrace
