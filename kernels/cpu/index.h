// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/tensor/tensor.h>

namespace millrace::cpu {

/// All elements of an i64 or i32 tensor in row-major order.
inline std::vector<std::int64_t> index_values(const Tensor& index) {
  std::vector<std::int64_t> values;
  values.reserve(static_cast<std::size_t>(index.elements()));
  for_each_offset(index.dims(), index.strides(), [&](std::int64_t offset) {
    values.push_back(index.dtype() == DType::i64 ? static_cast<const std::int64_t*>(index.raw())[offset]
                                                 : static_cast<const std::int32_t*>(index.raw())[offset]);
  });
  return values;
}

}  // namespace millrace::cpu
