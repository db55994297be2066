// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/narrow.h>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/int8.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/ops/internal/packing.h>

namespace millrace::layers {

NarrowMatrix narrowed(const Tensor& w, DType dtype) {
  if (w.rank() != 2) throw ShapeError("narrowed weights: expected a matrix [k, n], found " + w.to_string());
  if (w.dtype() != DType::f32 || (dtype != DType::bf16 && dtype != DType::i8))
    throw DTypeError("narrowed weights: expected f32 to become bf16 or i8, found " + w.to_string() + " to become " +
                     std::string(name_of(dtype)));
  ops::PackingStream stream;
  if (dtype == DType::bf16) return {cast(w, dtype, stream).copy_to(CpuPlace{}), std::nullopt};
  const QuantizedRows columns = quantize_rows(w.permute({1, 0}), stream);
  return {columns.values.permute({1, 0}).copy_to(CpuPlace{}), columns.scales.reshape(DDim{w.dim(1)})};
}

Matrix matrix(const std::string& name, const Tensor& w, std::optional<DType> dtype) {
  if (!dtype || *dtype == w.dtype()) return {build::parameter(name, w)};
  const NarrowMatrix narrow = narrowed(w, *dtype);
  const build::Var values = build::parameter(name, narrow.values);
  return {values, narrow.scales ? build::parameter(name + "_scale", *narrow.scales) : build::Var()};
}

build::Var product(const build::Var& x, const Matrix& w) {
  if (!w.scales.defined()) return build::matmul(x, w.values);
  return build::matmul_int8(build::quantize_rows(x), w.values, w.scales);
}

}  // namespace millrace::layers
