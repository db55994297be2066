// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

namespace cpu {
struct Int8Kernels;
}

/// Rows as i8 with one scale each: values·scale is about x.
struct QuantizedRows {
  Tensor values;  ///< i8 [..., k], each −127 … 127
  Tensor scales;  ///< f32 [..., 1]
};

/// x f32 [..., k], each row alone:
///
///   m = max |x_k|                       0 of a row without elements
///   scale = m / 127;   r = 127 / m      r = 0 where m is 0; where scale < 2^-107, x and m are multiplied by 2^64 first
///   value_k = x_k·r to the nearest whole number, ties to even, within ±127
///
/// each step rounded once in f32. A NaN in a row makes its scale NaN, an infinity infinite, so that no product hides them; values of
/// NaN are 0. ShapeError for a scalar, DTypeError.
QuantizedRows quantize_rows(const Tensor& x, StreamRef stream);

/// out[M, n] = (float(Σ_k x[M, k]·W[k, n]) · x_scale[M]) · w_scale[n]: the sum is exact, then a rounding to f32 (to nearest, ties to even)
/// and two rounded products. So every instruction set gives the same bits, with any number of rows.
struct Int8Desc {
  std::int64_t k = 0;  ///< below 131072, so that sums stay in i32
  std::int64_t n = 0;
};

/// Immutable, cheap to copy, shareable between threads. ArgumentError, PlaceError.
class Int8Plan {
 public:
  const Int8Desc& desc() const noexcept { return desc_; }
  const Place& place() const noexcept { return place_; }
  const cpu::Int8Kernels& kernels() const noexcept { return *kernels_; }

 private:
  friend Int8Plan make_int8_plan(const Int8Desc& desc, const Place& place);
  Int8Desc desc_;
  Place place_;
  const cpu::Int8Kernels* kernels_ = nullptr;
};
Int8Plan make_int8_plan(const Int8Desc& desc, const Place& place = CpuPlace{});

/// [block of units][group of k][lanes][k of the group], with what the kernels need of each column beside. Cheap to copy, shareable. For a
/// CUDA device the weights stay row-major, and there are no offsets.
struct PackedInt8 {
  Tensor data;     ///< i8
  Tensor offsets;  ///< i32: 128 times the sum of each column
  Tensor scales;   ///< f32, of each column
};
/// W i8 [k, n] and its scales f32 [n], of any strides. ShapeError, DTypeError.
PackedInt8 pack(const Int8Plan& plan, const Tensor& weights, const Tensor& scales, StreamRef stream);

/// x i8 [..., k], x_scales f32 [..., 1], out f32 [..., n]: contiguous. ShapeError, DTypeError.
void run(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& x_scales, Tensor& out, StreamRef stream);

}  // namespace millrace
