// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The parts one behind the other along `axis`; the other extents and the dtypes agree (ShapeError, DTypeError name
/// both). At least one part.
Tensor concat(const std::vector<Tensor>& parts, int axis, StreamRef stream);
void concat(const std::vector<Tensor>& parts, int axis, Tensor& out, StreamRef stream);

/// Views of `x`, `sizes` long along `axis`: no work, no copy. ShapeError when the sizes are negative or do not add up.
std::vector<Tensor> split(const Tensor& x, int axis, const std::vector<std::int64_t>& sizes);

}  // namespace millrace
