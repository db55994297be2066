// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Functions of two elements.
///
///   add sub mul      floats round once; integers wrap
///   div              floats round once; integers truncate toward zero, least / −1 wraps to itself
///   pow              floats: x·x when y is 2, else f32 within 0.6 ulp and f64 the C library's; integers: wrapping, 1 / x^−y for a negative y
///   minimum maximum  NaN wins
///   mod, fmod        remainder with the sign of the divisor (Python's %), of the dividend (C's)
///   prelu            x for x ≥ 0, else y·x
///   sigmoid_gradient x·(y·(1 − y)), which takes the gradient x of y = sigmoid(z) to that of z; floats alone
///   tanh_gradient    x·(1 − y·y), the same of tanh
///   equal … greater_equal     give bool; with a NaN false, not_equal true
///   logical_and, _or, _xor       bool to bool
///
/// An integer division by zero (div, mod, fmod, 0 to a negative power) is an ArgumentError that fails the stream and
/// names the function.
enum class Binary : std::uint8_t {
  add,
  sub,
  mul,
  div,
  pow,
  minimum,
  maximum,
  mod,
  fmod,
  prelu,
  sigmoid_gradient,
  tanh_gradient,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,
  logical_or,
  logical_xor,
};

/// "less_equal".
std::string_view name_of(Binary kind);

/// The result's dtype: bool for comparisons and logic, else `dtype`. DTypeError where `kind` does not take it: logic
/// takes bool, arithmetic and order take numbers, gradients floats, equal and not_equal take all. f16 and bf16 are computed in f32, then
/// narrowed.
DType result_dtype(Binary kind, DType dtype);

/// out = f(a, b) with numpy's broadcasting; strides as they come. a and b have one dtype (DTypeError names both); `out`
/// has the broadcast extents (ShapeError names all) and may be `a` or `b` where that operand is not stretched.
void binary(Binary kind, const Tensor& a, const Tensor& b, Tensor& out, StreamRef stream);
/// f(a, b) in new memory of `stream`.
Tensor binary(Binary kind, const Tensor& a, const Tensor& b, StreamRef stream);

}  // namespace millrace
