// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// out = table[x], element by element: x u8 or i8 of any extents, whose bits as an u8 are the index; `table` u8 or i8 [256], contiguous. In host memory alone. ShapeError, DTypeError.
Tensor map_bytes(const Tensor& table, const Tensor& x, StreamRef stream);

}  // namespace millrace
