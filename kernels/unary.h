// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Functions of one element. math.h and activation.h define each one and its parameters.
enum class Unary : std::uint8_t {
  // math.h
  identity,
  neg,
  abs,
  sign,
  square,
  sqrt,
  reciprocal,
  exp,
  log,
  erf,
  sin,
  cos,
  atan,
  floor,
  ceil,
  round,
  logical_not,
  is_nan,
  is_inf,
  // activation.h
  tanh,
  sigmoid,
  relu,
  leaky_relu,
  thresholded_relu,
  elu,
  selu,
  celu,
  gelu,
  gelu_tanh,
  hard_sigmoid,
  hard_swish,
  mish,
  softplus,
  softsign,
  affine,
  scaled_tanh,
  swish,
  clip,
};

/// "leaky_relu".
std::string_view name_of(Unary kind);

/// Up to two numbers of a function; which is which stands beside each function.
struct UnaryParams {
  double alpha = 0;
  double beta = 0;
};

/// ONNX's default numbers of `kind`; zeros where it has none.
UnaryParams default_params(Unary kind);

/// The result's dtype: bool for is_nan and is_inf, else `dtype`. DTypeError where `kind` does not take it: logical_not
/// takes bool; identity, neg, abs, sign, square, relu and clip take numbers; the others take floats. f16 and bf16 are
/// computed in f32, then narrowed.
DType result_dtype(Unary kind, DType dtype);

/// out = f(x), element by element; strides as they come; `out` may be `x` itself.
void unary(Unary kind, const UnaryParams& params, const Tensor& x, Tensor& out, StreamRef stream);
/// f(x) in new memory of `stream`.
Tensor unary(Unary kind, const UnaryParams& params, const Tensor& x, StreamRef stream);

}  // namespace millrace
