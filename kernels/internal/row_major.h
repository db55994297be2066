// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace::internal {

/// out = x with the team of the stream; dtypes and extents agree. `op` is named in errors.
void copy_into(const char* op, const Tensor& x, const Tensor& out, StreamRef stream);

/// A view as row-major elements in new memory of the stream.
Tensor row_major(const char* op, const Tensor& x, StreamRef stream);
/// A view as row-major elements of `dtype`, converted, in new memory of the stream.
Tensor row_major_as(const char* op, const Tensor& x, DType dtype, StreamRef stream);

}  // namespace millrace::internal
