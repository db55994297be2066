// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <millrace/runtime/builder/var.h>
#include <millrace/tensor/tensor.h>

/// Weights in fewer bits. The arithmetic stays what the program says: rows, gates, states and sums are f32.
namespace millrace::layers {

/// A matrix W [k, n] as it is held.
struct NarrowMatrix {
  Tensor values;                 ///< bf16, or i8 within ±127
  std::optional<Tensor> scales;  ///< of i8: f32 [n], one for each column
};
/// W f32 [k, n] in `dtype`: bf16, rounded to nearest; or i8, each column as `quantize_rows` (kernels/int8.h) does a row. ShapeError,
/// DTypeError.
NarrowMatrix narrowed(const Tensor& w, DType dtype);

/// A matrix in a program: of i8 with its scales.
struct Matrix {
  Matrix() = default;
  Matrix(build::Var of, build::Var with = {}) : values(std::move(of)), scales(std::move(with)) {}
  build::Var values;
  build::Var scales;
};
/// Parameters `name` and, of i8, `name`_scale. `dtype`: in fewer bits, as `narrowed` does; none, or that of W: as it is.
Matrix matrix(const std::string& name, const Tensor& w, std::optional<DType> dtype = {});

/// x·W for rows x: `matmul`, or of i8 `matmul_int8` of the rows quantized.
build::Var product(const build::Var& x, const Matrix& w);

/// Puts narrow matrices in the place of those of f32 that never change and that a product of `program` multiplies rows by: `matmul`, `gemm`
/// without factors, `lstm_cell`, in every block. With i8 the rows are quantized before each product, and an `lstm_cell` becomes
/// `lstm_gates` behind them.
/// Convolutions and tables stay as they are. A wide matrix that nothing else reads is removed from the program. Gives how many products have narrow weights now. DTypeError unless `dtype` is bf16 or i8.
std::int64_t narrow_weights(Program& program, DType dtype);

}  // namespace millrace::layers
