// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/tensor/tensor.h>

namespace millrace::internal {

/// The dtype in which floats of `dtype` are computed.
constexpr DType wide_dtype(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype; }

/// Whether rows of `rows` may meet weights of `weights`: of one dtype, or of bf16 under f32.
constexpr bool multiplies(DType rows, DType weights) { return rows == weights || (rows == DType::f32 && weights == DType::bf16); }

/// A place for `x` in its wide dtype: `x` itself when it is wide, else new memory of the same extents, which a kernel
/// fills with `cpu::cast`.
inline Tensor wide_room(const Tensor& x, const std::shared_ptr<MemoryResource>& memory) {
  return wide_dtype(x.dtype()) == x.dtype() ? x : Tensor(wide_dtype(x.dtype()), x.dims(), memory);
}

}  // namespace millrace::internal
