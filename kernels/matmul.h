// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The matrix product as numpy and ONNX MatMul define it: 2-D by 2-D; a 1-D left operand is a row, a 1-D right one a
/// column, and that axis goes away again; leading axes are a batch and broadcast. Order of arithmetic: gemm.h. One
/// dtype for both, or b of bf16 and a of f32; the result has that of a (i32 for i8 and u8). ShapeError names both shapes.
Tensor matmul(const Tensor& a, const Tensor& b, StreamRef stream);
/// Into `out` (contiguous), which may be f32 when the operands are f16 or bf16.
void matmul(const Tensor& a, const Tensor& b, Tensor& out, StreamRef stream);

/// The extents of the product.
DDim matmul_dims(const DDim& a, const DDim& b);

}  // namespace millrace
