// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/kernels/int8.h>
#include <millrace/kernels/row_function.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// f32 numbers rounded to 8 bits and back, as ONNX DynamicQuantizeLinear and DequantizeLinear do it. All elements of the axes from `axis` (0 … rank) on
/// share one scale:
///
///   high = max(0, x…); low = min(0, x…); scale = (high − low) / 255, 1 where that is 0; zero = round(clip(−low / scale, 0, 255))
///   out = (clip(round(x / scale) + zero, 0, 255) − zero) · scale
///
/// each step rounded once in f32, `round` to nearest, ties to even. A NaN or an infinity makes NaN of all.
Tensor round_to_bytes(const Tensor& x, int axis, StreamRef stream);
/// Rounds `rows` rows of `count` elements in host memory, which share one scale; `out` may be `x`.
void round_to_bytes(const RowView& x, std::int64_t rows, std::int64_t count, const RowView& out);

/// out[.., n] = (float(Σ_k (byte[.., k] − zero)·W[k, n]) · scale) · w_scale[n], with the bytes, the zero and the scale of x[.., k] as above: the sum is
/// exact, then a rounding to f32 and two rounded products. `axis` is 0 … rank − 1; k up to `most_bytes_k`.
Tensor matmul_bytes(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, int axis, StreamRef stream);
/// `matmul_bytes` of `rows` rows in host memory, which share one scale, in the calling thread. `bytes`: room for one row or more.
void matmul_bytes(const Int8Plan& plan, const PackedInt8& weights, const RowView& x, std::int64_t rows, std::span<std::uint8_t> bytes,
                  const RowView& out);
inline constexpr std::int64_t most_bytes_k = 65535;

/// The bytes of x, u8, their scales and their zeros, u8, both of the extents in front of `axis`. Where the scale is NaN the bytes say nothing.
struct ByteTensor {
  Tensor bytes;
  Tensor scale;
  Tensor zero;
};
ByteTensor quantize_bytes(const Tensor& x, int axis, StreamRef stream);

/// Two numbers for each column of weights: the one that stands for 0 in it, and what is added to its sums. i32 [n], contiguous, or null for 0.
struct ByteColumns {
  const Tensor* zero = nullptr;
  const Tensor* added = nullptr;
};

/// Σ_k (x[.., k] − zero)·(W[k, n] − column_zero[n]) + added[n], i32, for x of u8 or i8 and zeros of its dtype, whose extents are the first of x. The
/// scales of the weights are not read. Sums beyond i32 wrap.
Tensor matmul_integer(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& zero, const ByteColumns& columns,
                      StreamRef stream);

/// `arithmetic` (kernels/arithmetic.h) on these sums, with the same bits: the sums are not written. The zero is one for all; operands are f32 of one element or [n]. In
/// host memory alone.
Tensor matmul_integer(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& zero, const ByteColumns& columns,
                      const std::vector<ArithmeticStep>& steps, std::span<const Tensor* const> operands, DType to, StreamRef stream);

}  // namespace millrace
