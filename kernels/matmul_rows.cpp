// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/matmul_rows.h>

#include <millrace/kernels/cpu/matmul_rows.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

template <class T>
RowFunction of(const MatmulRows& desc) {
  return [desc](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const T *a = inputs[0].row<T>(row), *b = inputs[1].row<T>(row);
      T* out = outputs[0].row<T>(row);
      for (std::int64_t i = 0; i < desc.batch; ++i)
        cpu::matmul_row(a + i * desc.m * desc.k, b + i * desc.k * desc.n, out + i * desc.m * desc.n, desc.m, desc.k, desc.n);
    }
  };
}

}  // namespace

RowFunction matmul_rows(const MatmulRows& desc) {
  if (desc.dtype == DType::f32) return of<float>(desc);
  if (desc.dtype == DType::f64) return of<double>(desc);
  throw DTypeError("matmul_rows: expected f32 or f64, found " + std::string(name_of(desc.dtype)));
}

}  // namespace millrace
