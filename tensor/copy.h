// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Copies the elements of `src` to `dst`, whatever the strides of either, in the order of `stream`: behind what produces `src`, before what
/// `dst.ready()` is awaited for. Both have the same dtype and extents (DTypeError, ShapeError name both) and lie where the host may look, or
/// one of them on the CUDA device of `stream` (PlaceError). Between two CUDA devices the elements on the other one must be contiguous. From and
/// to host memory that is not pinned, CUDA copies before the call returns. `dst` may be a view made on the spot; it must not overlap `src` unless it is the same view (ArgumentError).
void copy(const Tensor& src, const Tensor& dst, StreamRef stream);

/// The elements of `src` in new row-major storage from the stream's memory.
Tensor clone(const Tensor& src, StreamRef stream);

/// `src` itself when its elements are contiguous, else its clone.
Tensor contiguous(const Tensor& src, StreamRef stream);

}  // namespace millrace
