// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/row_function.h>
#include <millrace/tensor/dtype.h>

namespace millrace {

/// A product of two matrices that each row brings itself: `batch` of them in a row.
struct MatmulRows {
  DType dtype = DType::f32;  ///< f32 or f64
  std::int64_t batch = 1;
  std::int64_t m = 1;
  std::int64_t k = 1;
  std::int64_t n = 1;
};

/// out[batch, m, n] = a[batch, m, k] · b[batch, k, n] for each row, with the bits of `matmul`. DTypeError for another dtype.
RowFunction matmul_rows(const MatmulRows& desc);

}  // namespace millrace
