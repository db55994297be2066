// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <millrace/tensor/tensor.h>

namespace millrace {

/// Makes `kept` a host tensor of `rows` rows of `row`, whose elements are undefined. Memory is kept from call to call and grows by doubling, so that calls
/// allocate nothing once the most rows were there. Nothing else may hold the tensor's storage.
inline void fit_rows(Tensor& kept, DType dtype, const DDim& row, std::int64_t rows) {
  const std::int64_t row_bytes = std::max<std::int64_t>(row.elements() * static_cast<std::int64_t>(size_of(dtype)), 1);
  const std::int64_t room = kept.dtype() == dtype ? static_cast<std::int64_t>(kept.storage()->bytes()) / row_bytes : 0;
  if (rows > room || kept.dtype() != dtype) kept = Tensor(dtype, row.inserted(0, std::max(rows, 2 * room)));
  kept.resize(row.inserted(0, rows));
  kept.storage()->mark_written();
}

}  // namespace millrace
