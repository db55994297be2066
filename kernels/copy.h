// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// out = x, element by element, whatever the strides of either. DTypeError and ShapeError name both sides. The two may
/// not overlap.
void copy(const Tensor& x, Tensor& out, StreamRef stream);

/// `x` itself when its elements are contiguous, else a row-major copy in the memory of `stream`.
Tensor contiguous(const Tensor& x, StreamRef stream);

/// A row-major copy in the memory of `stream`, always of new storage.
Tensor clone(const Tensor& x, StreamRef stream);

}  // namespace millrace
