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
  const auto read = [&](const auto* from) {
    if (index.is_contiguous()) {
      values.assign(from, from + index.elements());
      return;
    }
    values.reserve(static_cast<std::size_t>(index.elements()));
    for_each_offset(index.dims(), index.strides(), [&](std::int64_t offset) { values.push_back(from[offset]); });
  };
  index.dtype() == DType::i64 ? read(static_cast<const std::int64_t*>(index.raw())) : read(static_cast<const std::int32_t*>(index.raw()));
  return values;
}

}  // namespace millrace::cpu
