// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/tensor.h>

namespace millrace {

/// Copies the elements of `src` to `dst` in the calling thread: host memory, one dtype, the same extents, any strides, no overlap.
void copy_strided(const Tensor& src, const Tensor& dst);

}  // namespace millrace
