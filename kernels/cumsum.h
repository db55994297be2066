// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/row_function.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Running sums along `axis`, in order, never as a tree; f16 and bf16 narrow each sum from a running f32; integers
/// wrap. `exclusive` leaves an element out of its own sum; `reverse` runs from the end.
Tensor cumsum(const Tensor& x, int axis, bool exclusive, bool reverse, StreamRef stream);

/// Rows [outer, n, inner] of f32 or f64, each of which is summed along n.
struct CumsumRows {
  DType dtype = DType::f32;
  std::int64_t outer = 1, n = 0, inner = 1;
  bool exclusive = false, reverse = false;
};
/// `cumsum` of rows in host memory, with its bits: one input and one output.
RowFunction cumsum_rows(const CumsumRows& desc);

}  // namespace millrace
