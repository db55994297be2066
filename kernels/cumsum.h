// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Running sums along `axis`, in order, never as a tree; f16 and bf16 narrow each sum from a running f32; integers
/// wrap. `exclusive` leaves an element out of its own sum; `reverse` runs from the end.
Tensor cumsum(const Tensor& x, int axis, bool exclusive, bool reverse, StreamRef stream);

}  // namespace millrace
