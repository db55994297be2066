// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Sets every element of `out` (any dtype, any strides) to `value`, converted as `cast` does.
void fill(Tensor& out, double value, StreamRef stream);

/// New tensors in the memory of `stream`.
Tensor full(const DDim& dims, double value, DType dtype, StreamRef stream);
Tensor zeros(const DDim& dims, DType dtype, StreamRef stream);
Tensor ones(const DDim& dims, DType dtype, StreamRef stream);

/// [start, start + step, …): ceil((limit − start) / step) elements, none when that is negative. Element i is start +
/// i·step: floats round the product, then the sum, in f64; integers are exact. ArgumentError for a step of 0, and for
/// bool.
Tensor arange(double start, double limit, double step, DType dtype, StreamRef stream);
Tensor arange(std::int64_t count, DType dtype, StreamRef stream);

}  // namespace millrace
