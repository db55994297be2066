// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include <millrace/tensor/tensor.h>

namespace millrace::testing {

/// Whether both tensors have equal elements to the bit, one dtype and equal extents, on whatever places they are.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.dims() != b.dims()) return false;
  const Tensor left = a.copy_to(CpuPlace{}), right = b.copy_to(CpuPlace{});
  return a.elements() == 0 || std::memcmp(left.raw(), right.raw(), a.bytes()) == 0;
}

}  // namespace millrace::testing
